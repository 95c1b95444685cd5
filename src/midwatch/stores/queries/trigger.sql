-- get: one trigger that was not removed
SELECT {trigger} FROM triggers WHERE id = :id AND removed_at IS NULL

-- list: the triggers of some kinds whose automation is active, or also those of paused ones
SELECT {trigger} FROM triggers
WHERE kind IN {list:kinds} AND removed_at IS NULL
  AND EXISTS (
    SELECT 1 FROM automations WHERE automations.id = triggers.automation_id
      AND (status = 'active' OR (CAST(:paused AS BOOLEAN) AND status = 'paused'))
  )

-- list_naming: the triggers of a kind whose options contain one of some words
SELECT {trigger} FROM triggers
WHERE kind = :kind AND removed_at IS NULL
  AND EXISTS (SELECT 1 FROM {list:words} AS word WHERE options LIKE '%' || word.value || '%')
  AND EXISTS (
    SELECT 1 FROM automations WHERE automations.id = triggers.automation_id AND status IN ('active', 'paused')
  )

-- firing: one firing
SELECT {firing} FROM firings WHERE id = :id

-- find: the firing of a trigger with a key
SELECT {firing} FROM firings WHERE trigger_id = :trigger_id AND key = :key

-- of_task: the firing that started a task
SELECT {firing} FROM firings WHERE task_id = :task_id

-- firings: the firings of an automation, newest first
SELECT {firing} FROM firings WHERE automation_id = :automation_id ORDER BY id DESC LIMIT :limit

-- due: due firings, for each automation the first; those that wait for the end of an open run are left out
SELECT {firing} FROM firings
WHERE status = 'pending' AND due_at <= :now
  AND NOT EXISTS (
    SELECT 1 FROM firings AS earlier
    WHERE earlier.automation_id = firings.automation_id AND earlier.status = 'pending' AND earlier.id < firings.id
  )
  AND (EXISTS (
    SELECT 1 FROM automations WHERE automations.id = firings.automation_id AND overlap IN ('skip', 'replace')
  ) OR NOT EXISTS (
    SELECT 1 FROM tasks
    WHERE cause_id = firings.automation_id AND cause IN ('automation', 'goal') AND status IN ('pending', 'running')
  ))
ORDER BY due_at, id LIMIT :limit

-- next_at: when the next firing becomes due
SELECT min(due_at) FROM firings WHERE status = 'pending' AND due_at > :now

-- count: how often a trigger fired since a moment
SELECT count(*) FROM firings WHERE trigger_id = :trigger_id AND created_at >= :since AND replay_of IS NULL

-- count_waiting: how many firings of an automation are pending
SELECT count(*) FROM firings WHERE automation_id = :automation_id AND status = 'pending'

-- late: how many firings of each automation have been due for long, and since when
SELECT automation_id, count(*), min(due_at) FROM firings WHERE status = 'pending' AND due_at <= :before
GROUP BY automation_id ORDER BY min(due_at), automation_id LIMIT :limit

-- unread: triggers of active automations whose files or branches cannot be read
SELECT {trigger} FROM triggers
WHERE kind IN ('file', 'git') AND removed_at IS NULL AND CAST(state AS TEXT) LIKE '%"unread_at"%'
  AND EXISTS (SELECT 1 FROM automations WHERE automations.id = triggers.automation_id AND status = 'active')
LIMIT :limit

-- prune: firings that ended long ago
DELETE FROM firings WHERE status <> 'pending' AND ended_at < :before RETURNING id

-- prune_triggers: triggers that were removed, or whose automation was, and that have no firing
DELETE FROM triggers
WHERE (removed_at IS NOT NULL OR NOT EXISTS (SELECT 1 FROM automations WHERE automations.id = triggers.automation_id))
  AND NOT EXISTS (SELECT 1 FROM firings WHERE firings.trigger_id = triggers.id)
