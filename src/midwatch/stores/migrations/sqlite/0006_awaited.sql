-- Whether the source of a handoff waits for its answer.
ALTER TABLE handoffs ADD COLUMN awaited INTEGER NOT NULL DEFAULT 0;
