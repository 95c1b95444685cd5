-- How the result of a handoff returns to the agent that does not wait for it. A retry needs it, also without a task.
ALTER TABLE handoffs ADD COLUMN returns TEXT;
UPDATE handoffs SET returns = (SELECT tasks.returns FROM tasks WHERE tasks.id = handoffs.task_id) WHERE form = 'delegate';
