-- Results of background work for the agents that started it.
CREATE TABLE context_items (
  id TEXT PRIMARY KEY,
  session_key TEXT NOT NULL,
  for_task TEXT NOT NULL,
  from_task TEXT NOT NULL,
  agent TEXT NOT NULL,
  outcome TEXT NOT NULL,
  text TEXT NOT NULL,
  length BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  wake BIGINT NOT NULL CHECK (wake IN (0, 1)),
  status TEXT NOT NULL CHECK (status IN ('queued', 'taken')),
  taken_by TEXT,
  attempt BIGINT
);
CREATE INDEX context_items_queued ON context_items (session_key, created_at, id) WHERE status = 'queued';
CREATE INDEX context_items_taken ON context_items (taken_by, created_at, id) WHERE status = 'taken';

-- The task whose agent started this task without waiting for it, and how the result returns to that agent.
ALTER TABLE tasks ADD COLUMN returns_to TEXT;
ALTER TABLE tasks ADD COLUMN returns TEXT;
-- Tasks that go on later, or that a result begins: they can take further results.
CREATE INDEX tasks_taking ON tasks (session_key, id) WHERE status = 'pending' AND (attempt > 0 OR cause = 'result');
