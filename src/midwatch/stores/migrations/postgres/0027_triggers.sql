-- Triggers of automations besides the time, and their firings.
ALTER TABLE automations ADD COLUMN triggers TEXT NOT NULL DEFAULT '[]';
CREATE TABLE triggers (
  id TEXT PRIMARY KEY,
  automation_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  options TEXT NOT NULL,
  secret TEXT,
  state TEXT,
  created_at BIGINT NOT NULL,
  fired_at BIGINT,
  removed_at BIGINT
);
CREATE INDEX triggers_kind ON triggers (kind, id) WHERE removed_at IS NULL;
CREATE INDEX triggers_automation ON triggers (automation_id);

CREATE TABLE firings (
  id TEXT PRIMARY KEY,
  automation_id TEXT NOT NULL,
  trigger_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
  summary TEXT NOT NULL,
  payload TEXT,
  status TEXT NOT NULL CHECK (status IN ('pending', 'started', 'skipped')),
  reason TEXT,
  task_id TEXT,
  chain_id TEXT,
  replay_of TEXT,
  created_at BIGINT NOT NULL,
  due_at BIGINT NOT NULL,
  ended_at BIGINT
);
CREATE UNIQUE INDEX firings_key ON firings (trigger_id, key);
CREATE INDEX firings_recent ON firings (trigger_id, created_at);
CREATE INDEX firings_automation ON firings (automation_id, id);
CREATE INDEX firings_pending ON firings (due_at, id) WHERE status = 'pending';
CREATE INDEX firings_waiting ON firings (automation_id, id) WHERE status = 'pending';
CREATE INDEX firings_task ON firings (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX firings_ended ON firings (ended_at) WHERE status <> 'pending';
