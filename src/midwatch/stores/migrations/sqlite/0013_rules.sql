-- Rules of tasks and sessions. The rules of an automation are copied to each of its runs.
ALTER TABLE tasks ADD COLUMN approvals TEXT;
ALTER TABLE sessions ADD COLUMN approvals TEXT;
UPDATE tasks SET approvals = (SELECT automations.approvals FROM automations WHERE automations.id = tasks.cause_id)
WHERE cause = 'automation' AND status IN ('pending', 'running');
