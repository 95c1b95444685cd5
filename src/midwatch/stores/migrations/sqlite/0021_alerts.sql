-- An alert is a record: raised, escalated, acknowledged, withdrawn.
DROP TABLE alerts;
CREATE TABLE alerts (
  id TEXT PRIMARY KEY,
  status TEXT NOT NULL CHECK (status IN ('raised', 'escalated', 'acknowledged', 'withdrawn')),
  subject TEXT NOT NULL,
  kind TEXT NOT NULL,
  text TEXT NOT NULL,
  since INTEGER NOT NULL,
  route TEXT,
  notices TEXT,
  session_key TEXT,
  task_id TEXT,
  agent TEXT,
  raised_at INTEGER NOT NULL,
  escalated_at INTEGER,
  acknowledged_at INTEGER,
  acknowledged_by TEXT,
  withdrawn_at INTEGER
);
CREATE UNIQUE INDEX alerts_open ON alerts (subject, kind) WHERE status <> 'withdrawn';
CREATE INDEX alerts_withdrawn ON alerts (withdrawn_at) WHERE status = 'withdrawn';

-- Tasks of conversations, and tasks that want a directory for themselves, that wait for a running task.
CREATE INDEX tasks_behind ON tasks (gate_key, due_at, id)
  WHERE status = 'pending' AND substr(session_key, 1, 3) <> 'bg:';
CREATE INDEX tasks_behind_directory ON tasks (dir_key, due_at, id) WHERE status = 'pending' AND dir_key IS NOT NULL;
CREATE INDEX automations_paused ON automations (updated_at, id) WHERE status = 'paused';
CREATE INDEX goals_paused ON goals (updated_at, id) WHERE status = 'paused';
