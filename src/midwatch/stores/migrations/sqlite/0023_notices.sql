-- Which notices about a task, an automation or a goal are sent.
ALTER TABLE tasks ADD COLUMN notices TEXT;
ALTER TABLE automations ADD COLUMN notices TEXT;
ALTER TABLE goals ADD COLUMN notices TEXT;
-- A task may have several routes on one channel, and notices may be sent together, as a digest.
CREATE TABLE deliveries_new (
  id TEXT PRIMARY KEY,
  task_id TEXT NOT NULL,
  channel TEXT NOT NULL,
  notice TEXT NOT NULL,
  text TEXT NOT NULL,
  target TEXT,
  policy TEXT,
  digest_id TEXT,
  status TEXT NOT NULL CHECK (status IN ('pending', 'sent', 'failed')),
  attempts INTEGER NOT NULL,
  due_at INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  sent_at INTEGER,
  error TEXT
);
INSERT INTO deliveries_new (id, task_id, channel, notice, text, target, status, attempts, due_at, created_at, sent_at, error)
SELECT id, task_id, channel, notice, text, target, status, attempts, due_at, created_at, sent_at, error FROM deliveries;
DROP TABLE deliveries;
ALTER TABLE deliveries_new RENAME TO deliveries;
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE status = 'pending';
CREATE INDEX deliveries_status ON deliveries (status, id);
CREATE UNIQUE INDEX deliveries_once ON deliveries (task_id, channel, notice, coalesce(target, ''));
CREATE INDEX deliveries_digest ON deliveries (digest_id, id) WHERE digest_id IS NOT NULL;
