-- get: one handoff
SELECT {handoff} FROM handoffs WHERE id = :id

-- find: the handoff of a task with this idempotency key
SELECT {handoff} FROM handoffs WHERE coalesce(source_task, '') = :source_task AND once = :once

-- open: the number of open handoffs to each agent
SELECT to_agent, count(*) FROM handoffs WHERE {open_handoff} GROUP BY to_agent

-- count: handoffs with the same root task
SELECT count(*) FROM handoffs WHERE root_id = :root_id

-- due: open handoffs after their deadline
SELECT {handoff} FROM handoffs WHERE {due_handoff} ORDER BY deadline_at LIMIT :limit

-- due_by_id: one handoff, if it is open and after its deadline
SELECT {handoff} FROM handoffs WHERE id = :id AND {due_handoff}

-- next: the earliest deadline of an open handoff
SELECT deadline_at FROM handoffs WHERE {open_handoff} AND NOT {handoff_waits} ORDER BY deadline_at LIMIT 1

-- lock_waiting: lock the open handoffs whose deadlines stood still while this question was open
UPDATE handoffs SET revision = revision
WHERE {open_handoff} AND {handoff_account} IN (
  SELECT question.account FROM ({budget_questions}) AS question WHERE question.id = :approval_id
)

-- move_deadlines: add the time for which a question was open, except the time for which another one is still open
UPDATE handoffs
SET deadline_at = deadline_at + ended.until_at
  - CASE WHEN handoffs.created_at > ended.created_at THEN handoffs.created_at ELSE ended.created_at END
FROM (
  SELECT question.account, question.created_at, coalesce((
    SELECT min(other.created_at) FROM ({budget_questions}) AS other
    WHERE other.status = 'pending' AND other.account = question.account AND other.created_at < question.resolved_at
  ), question.resolved_at) AS until_at
  FROM ({budget_questions}) AS question WHERE question.id = :approval_id
) AS ended
WHERE {open_handoff} AND {handoff_account} = ended.account
  AND ended.until_at > ended.created_at AND ended.until_at > handoffs.created_at

-- abandoned: handoffs whose process died before their task was created
SELECT {handoff} FROM handoffs
WHERE {open_handoff} AND status <> 'in_progress' AND owner IS NOT NULL AND owner NOT IN {list:living}

-- orphaned: open handoffs whose waiting source task has ended, except one to which that task was transferred
SELECT {handoff} FROM handoffs
WHERE {open_handoff} AND awaited = 1 AND EXISTS (
  SELECT 1 FROM tasks WHERE tasks.id = handoffs.source_task AND tasks.status NOT IN ('pending', 'running')
    AND (tasks.transferred_to IS NULL OR tasks.transferred_to <> coalesce(handoffs.task_id, ''))
)

-- prune: handoffs that ended long ago
DELETE FROM handoffs WHERE completed_at IS NOT NULL AND completed_at < :before
