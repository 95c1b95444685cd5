-- Names of automations, and what happens to runs that are due at an unsuitable time.
ALTER TABLE automations ADD COLUMN name TEXT;
ALTER TABLE automations ADD COLUMN overlap TEXT;
ALTER TABLE automations ADD COLUMN waiting_run_at BIGINT;
ALTER TABLE automations ADD COLUMN days_off TEXT NOT NULL DEFAULT '[]';
ALTER TABLE automations ADD COLUMN quiet_hours TEXT NOT NULL DEFAULT '[]';
CREATE UNIQUE INDEX automations_name ON automations (name) WHERE name IS NOT NULL AND status <> 'deleted';
CREATE INDEX automations_title ON automations (title, id) WHERE status <> 'deleted';
