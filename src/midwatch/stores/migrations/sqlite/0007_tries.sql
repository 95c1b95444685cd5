-- The attempts of a handoff's task that have ended.
ALTER TABLE handoffs ADD COLUMN tries TEXT NOT NULL DEFAULT '[]';
