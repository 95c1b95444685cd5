-- What turns have done so far, step by step; a thread's history is made of it.
CREATE TABLE steps (
  task_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  thread_id TEXT,
  created_at BIGINT NOT NULL,
  data TEXT,
  PRIMARY KEY (task_id, number)
);
CREATE INDEX steps_thread ON steps (thread_id, created_at) WHERE thread_id IS NOT NULL;

-- Messages that people sent into running turns.
CREATE TABLE steers (
  id TEXT PRIMARY KEY,
  task_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  session_key TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('interrupt', 'after_tool', 'stop')),
  text TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('queued', 'injected', 'passed_on', 'dropped')),
  actor TEXT,
  attempt INTEGER,
  became TEXT,
  idempotency_key TEXT
);
CREATE INDEX steers_task ON steers (task_id) WHERE status = 'queued';
CREATE UNIQUE INDEX steers_key ON steers (coalesce(actor, ''), idempotency_key) WHERE idempotency_key IS NOT NULL;

ALTER TABLE tasks ADD COLUMN steers INTEGER NOT NULL DEFAULT 0;
