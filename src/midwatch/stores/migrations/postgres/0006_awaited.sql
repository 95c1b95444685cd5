-- Whether the source of a handoff waits for its answer.
ALTER TABLE handoffs ADD COLUMN awaited BIGINT NOT NULL DEFAULT 0;
