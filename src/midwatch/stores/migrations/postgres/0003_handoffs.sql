-- Work passed from one agent to another.
CREATE TABLE handoffs (
  id TEXT PRIMARY KEY,
  status TEXT NOT NULL CHECK (status IN (
    'pending', 'accepted', 'in_progress', 'completed', 'failed', 'rejected', 'cancelled', 'expired'
  )),
  form TEXT NOT NULL CHECK (form IN ('delegate', 'transfer')),
  from_agent TEXT NOT NULL,
  to_agent TEXT NOT NULL,
  tool_name TEXT NOT NULL,
  tool_description TEXT NOT NULL,
  transfer_message TEXT NOT NULL,
  request TEXT NOT NULL,
  context TEXT NOT NULL,
  answer TEXT,
  chain TEXT NOT NULL,
  refusals TEXT NOT NULL,
  late TEXT,
  reason TEXT,
  source_task TEXT,
  root_id TEXT,
  once TEXT,
  task_id TEXT,
  session_key TEXT,
  creator TEXT,
  owner TEXT,
  retry_of TEXT,
  timeout DOUBLE PRECISION NOT NULL,
  deadline_at BIGINT NOT NULL,
  retry_count INTEGER NOT NULL,
  max_retries INTEGER NOT NULL,
  created_at BIGINT NOT NULL,
  accepted_at BIGINT,
  completed_at BIGINT,
  revision INTEGER NOT NULL
);
CREATE UNIQUE INDEX handoffs_once ON handoffs (coalesce(source_task, ''), once) WHERE once IS NOT NULL;
CREATE INDEX handoffs_root ON handoffs (root_id);
CREATE INDEX handoffs_open ON handoffs (deadline_at) WHERE status IN ('pending', 'accepted', 'in_progress');
CREATE INDEX handoffs_ended ON handoffs (completed_at) WHERE completed_at IS NOT NULL;
