-- The work that a task or a handoff grew out of, and the latest turn of a goal.
ALTER TABLE tasks ADD COLUMN parent_turn_id TEXT;
ALTER TABLE tasks ADD COLUMN trace_path TEXT;
ALTER TABLE tasks ADD COLUMN source TEXT;
ALTER TABLE handoffs ADD COLUMN parent_turn_id TEXT;
ALTER TABLE handoffs ADD COLUMN trace_path TEXT;
ALTER TABLE goals ADD COLUMN last_turn TEXT;
