-- Open tasks whose result returns: the task that started them is not pruned.
CREATE INDEX tasks_returning ON tasks (returns_to) WHERE returns_to IS NOT NULL AND completed_at IS NULL;
