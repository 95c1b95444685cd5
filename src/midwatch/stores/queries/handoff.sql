-- get: one handoff
SELECT {handoff} FROM handoffs WHERE id = :id

-- find: the handoff of a task with this idempotency key
SELECT {handoff} FROM handoffs WHERE coalesce(source_task, '') = :source_task AND once = :once

-- open: the number of open handoffs to each agent
SELECT to_agent, count(*) FROM handoffs WHERE status IN ('pending', 'accepted', 'in_progress') GROUP BY to_agent

-- count: handoffs with the same root task
SELECT count(*) FROM handoffs WHERE root_id = :root_id

-- due: open handoffs after their deadline
SELECT {handoff} FROM handoffs
WHERE status IN ('pending', 'accepted', 'in_progress') AND deadline_at <= :now ORDER BY deadline_at LIMIT :limit

-- next: the earliest deadline of an open handoff
SELECT min(deadline_at) FROM handoffs WHERE status IN ('pending', 'accepted', 'in_progress')

-- abandoned: handoffs whose process died before their task was created
SELECT {handoff} FROM handoffs
WHERE status IN ('pending', 'accepted', 'in_progress') AND status <> 'in_progress' AND owner IS NOT NULL AND owner NOT IN {list:living}

-- orphaned: open handoffs whose waiting source task has ended, except one to which that task was transferred
SELECT {handoff} FROM handoffs
WHERE status IN ('pending', 'accepted', 'in_progress') AND awaited = 1 AND EXISTS (
  SELECT 1 FROM tasks WHERE tasks.id = handoffs.source_task AND tasks.status NOT IN ('pending', 'running')
    AND (tasks.transferred_to IS NULL OR tasks.transferred_to <> coalesce(handoffs.task_id, ''))
)

-- prune: handoffs that ended long ago
DELETE FROM handoffs WHERE completed_at IS NOT NULL AND completed_at < :before
