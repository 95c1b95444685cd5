-- get: one automation
SELECT {automation} FROM automations WHERE id = :id

-- list: newest first
SELECT {automation} FROM automations {by:automations_recent}
WHERE status IN {list:statuses} ORDER BY created_at DESC, id DESC LIMIT :limit

-- list_scope: the same for one scope
SELECT {automation} FROM automations {by:automations_scope}
WHERE scope_kind = :scope_kind AND scope_id = :scope_id AND status IN {list:statuses}
ORDER BY created_at DESC, id DESC LIMIT :limit

-- named: the automation with this name
SELECT {automation} FROM automations WHERE name = :name AND name IS NOT NULL AND status <> 'deleted'

-- titled: automations with this title, oldest first
SELECT {automation} FROM automations WHERE title = :title AND status <> 'deleted' ORDER BY id LIMIT :limit

-- due: active automations whose next run is due, earliest first
SELECT {automation} FROM automations
WHERE status = 'active' AND next_run_at IS NOT NULL AND next_run_at <= :now ORDER BY next_run_at, id LIMIT :limit

-- held: automations whose session is closed, and automations whose last run is open or was transferred
-- (the conditions match indexes)
SELECT id, 'closed' FROM automations WHERE id IN {list:ids}
  AND EXISTS (SELECT 1 FROM sessions WHERE key = automations.session_key AND status = 'closed')
UNION ALL SELECT id, 'runs' FROM automations WHERE id IN {list:ids}
  AND (EXISTS (
    SELECT 1 FROM tasks
    WHERE cause_id = automations.id AND cause IN ('automation', 'goal') AND status IN ('pending', 'running')
  ) OR (
    SELECT transferred_to FROM tasks WHERE cause_id = automations.id AND cause = 'automation' ORDER BY id DESC LIMIT 1
  ) IS NOT NULL)

-- next_at: when the next automation is due
SELECT min(next_run_at) FROM automations WHERE status = 'active' AND next_run_at IS NOT NULL

-- open_run: the open task of an automation or a goal, or the open task to which its latest task was transferred
-- (the first conditions match an index)
WITH RECURSIVE following (id) AS (
  SELECT transferred_to FROM (
    SELECT transferred_to FROM tasks WHERE cause_id = :id AND cause = :cause ORDER BY id DESC LIMIT 1
  ) AS latest
  UNION ALL SELECT tasks.transferred_to FROM following JOIN tasks ON tasks.id = following.id
)
SELECT {task} FROM tasks
WHERE cause_id = :id AND cause = :cause AND cause IN ('automation', 'goal') AND status IN ('pending', 'running')
UNION ALL SELECT {task} FROM tasks WHERE id IN (SELECT id FROM following) AND status IN ('pending', 'running')

-- runs: the tasks of an automation or a goal, newest first
SELECT {task} FROM tasks WHERE cause_id = :id AND cause = :cause ORDER BY id DESC LIMIT :limit

-- results: the last ended runs of an automation that have a result or an error, newest first
SELECT {task} FROM tasks
WHERE cause_id = :id AND cause = :cause AND status IN ('done', 'failed') AND outcome NOT IN ('skipped', 'transferred')
ORDER BY id DESC LIMIT :limit

-- prune: automations that were deleted long ago
DELETE FROM automations WHERE status = 'deleted' AND deleted_at < :before RETURNING account_id
