-- get: one automation
SELECT {automation} FROM automations WHERE id = :id

-- list: newest first
SELECT {automation} FROM automations
WHERE (CAST(:scope_kind AS TEXT) IS NULL OR (scope_kind = :scope_kind AND scope_id = :scope_id))
  AND status IN {list:statuses}
ORDER BY created_at DESC, id DESC LIMIT :limit

-- due: earliest first
SELECT {automation} FROM automations
WHERE status = 'active' AND next_run_at IS NOT NULL AND next_run_at <= :now ORDER BY next_run_at, id LIMIT :limit

-- next_at: when the next one is due
SELECT min(next_run_at) FROM automations WHERE status = 'active' AND next_run_at IS NOT NULL

-- open_run: its open task (the conditions are those of the index)
SELECT {task} FROM tasks
WHERE cause_id = :id AND cause = :cause AND cause IN ('automation', 'goal') AND status IN ('pending', 'running')

-- passed_to: who goes on with the work of its latest task, if that was given away
SELECT transferred_to FROM tasks WHERE cause_id = :id AND cause = :cause ORDER BY id DESC LIMIT 1

-- runs: its tasks, newest first
SELECT {task} FROM tasks WHERE cause_id = :id AND cause = :cause ORDER BY id DESC LIMIT :limit

-- prune: long deleted ones
DELETE FROM automations WHERE status = 'deleted' AND deleted_at < :before
