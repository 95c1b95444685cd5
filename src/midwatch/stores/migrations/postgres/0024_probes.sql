-- Commands before runs and after steps, variables of runs, and results of earlier runs in prompts.
ALTER TABLE tasks ADD COLUMN probe TEXT;
ALTER TABLE automations ADD COLUMN when_command TEXT;
ALTER TABLE automations ADD COLUMN when_timeout DOUBLE PRECISION NOT NULL DEFAULT 60;
ALTER TABLE automations ADD COLUMN env TEXT;
ALTER TABLE automations ADD COLUMN history BIGINT NOT NULL DEFAULT 0;
ALTER TABLE goals ADD COLUMN check_command TEXT;
ALTER TABLE goals ADD COLUMN check_timeout DOUBLE PRECISION NOT NULL DEFAULT 600;
ALTER TABLE goals ADD COLUMN last_check TEXT;
