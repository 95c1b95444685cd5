-- Records that a file declares, idempotency keys of automations and goals, and tags by which records are found.
ALTER TABLE automations ADD COLUMN idempotency_key TEXT;
ALTER TABLE automations ADD COLUMN body_hash TEXT;
ALTER TABLE automations ADD COLUMN declared_by TEXT;
ALTER TABLE automations ADD COLUMN declaration TEXT;
CREATE UNIQUE INDEX automations_key ON automations (coalesce(creator, ''), idempotency_key)
WHERE idempotency_key IS NOT NULL;
CREATE INDEX automations_declared ON automations (declared_by, id)
WHERE declared_by IS NOT NULL AND status <> 'deleted';
ALTER TABLE goals ADD COLUMN tags TEXT NOT NULL DEFAULT '[]';
ALTER TABLE goals ADD COLUMN idempotency_key TEXT;
ALTER TABLE goals ADD COLUMN body_hash TEXT;
ALTER TABLE goals ADD COLUMN declared_by TEXT;
ALTER TABLE goals ADD COLUMN declaration TEXT;
CREATE UNIQUE INDEX goals_key ON goals (coalesce(creator, ''), idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX goals_declared ON goals (declared_by, id) WHERE declared_by IS NOT NULL;
ALTER TABLE rules ADD COLUMN name TEXT;
ALTER TABLE rules ADD COLUMN declared_by TEXT;
CREATE UNIQUE INDEX rules_declared ON rules (declared_by, name) WHERE declared_by IS NOT NULL AND revoked_at IS NULL;
ALTER TABLE tasks ADD COLUMN tags TEXT;

CREATE TABLE tagged (
  noun TEXT NOT NULL,
  tag TEXT NOT NULL,
  record_id TEXT NOT NULL,
  PRIMARY KEY (noun, tag, record_id)
) WITHOUT ROWID;
CREATE INDEX tagged_record ON tagged (record_id);
INSERT INTO tagged SELECT DISTINCT 'automation', item.value, automations.id FROM automations, json_each(automations.tags) AS item;
