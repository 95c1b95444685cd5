-- Which notices about a task, an automation or a goal are sent.
ALTER TABLE tasks ADD COLUMN notices TEXT;
ALTER TABLE automations ADD COLUMN notices TEXT;
ALTER TABLE goals ADD COLUMN notices TEXT;
-- A task may have several routes on one channel, and notices may be sent together, as a digest.
ALTER TABLE deliveries ADD COLUMN policy TEXT;
ALTER TABLE deliveries ADD COLUMN digest_id TEXT;
ALTER TABLE deliveries DROP CONSTRAINT deliveries_task_id_channel_notice_key;
CREATE UNIQUE INDEX deliveries_once ON deliveries (task_id, channel, notice, coalesce(target, ''));
CREATE INDEX deliveries_digest ON deliveries (digest_id, id) WHERE digest_id IS NOT NULL;
