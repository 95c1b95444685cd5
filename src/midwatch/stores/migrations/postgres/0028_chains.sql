-- When the state of a trigger was written, and the automations that led to a firing.
ALTER TABLE triggers ADD COLUMN state_at BIGINT;
ALTER TABLE firings ADD COLUMN path TEXT NOT NULL DEFAULT '[]';
