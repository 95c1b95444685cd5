-- find_key: the task that its creator submitted with this key
SELECT {task} FROM tasks WHERE coalesce(creator, '') = :creator AND idempotency_key = :key

-- count_outside: open tasks that were submitted from outside, counted up to a limit
SELECT count(*) FROM (
  SELECT 1 FROM tasks WHERE status = 'pending' AND cause IN ('submit', 'message')
  UNION ALL SELECT 1 FROM tasks WHERE status = 'running' AND cause IN ('submit', 'message')
  LIMIT :most
) AS open_tasks

-- count_outside_of: the same for one actor
SELECT count(*) FROM (
  SELECT 1 FROM tasks {by:tasks_actor}
  WHERE status = 'pending' AND coalesce(creator, '') = :actor AND cause IN ('submit', 'message')
  UNION ALL SELECT 1 FROM tasks {by:tasks_gate}
  WHERE status = 'running' AND coalesce(creator, '') = :actor AND cause IN ('submit', 'message')
  LIMIT :most
) AS open_tasks

-- ask_to_yield: request that background work that holds the gate yields to a person's message
UPDATE tasks SET stop_requested = 'yield'
WHERE gate_key = :gate AND status = 'running' AND stop_requested IS NULL
  AND cause IN ('automation', 'goal', 'handoff') AND on_crash <> 'fail'

-- claimable: due tasks of these agents whose gate and directory are free, in claim order, and whether several actors wait
SELECT {task},
  (SELECT min(coalesce(creator, '')) FROM tasks {by:tasks_actor} WHERE status = 'pending')
  < (SELECT max(coalesce(creator, '')) FROM tasks {by:tasks_actor} WHERE status = 'pending')
FROM tasks {by:tasks_claim}
WHERE status = 'pending' AND (wait IS NULL OR due_at <= :now)
  AND agent IN {list:agents}
  AND (submitter = :owner OR (NOT CAST(:own_only AS BOOLEAN) AND agent NOT IN {list:leave}))
  AND {directory_free}
  AND NOT EXISTS (SELECT 1 FROM tasks held WHERE held.gate_key = tasks.gate_key AND held.status = 'running')
  AND {not_live_elsewhere}
ORDER BY rank, due_at, id

-- waiting_actors: the distinct actors of waiting tasks, found with one index lookup each
WITH RECURSIVE waiting (actor) AS (
  SELECT (
    SELECT coalesce(creator, '') FROM tasks {by:tasks_actor}
    WHERE status = 'pending' ORDER BY coalesce(creator, '') LIMIT 1
  )
  UNION ALL SELECT (
    SELECT coalesce(creator, '') FROM tasks {by:tasks_actor}
    WHERE status = 'pending' AND coalesce(creator, '') > waiting.actor ORDER BY coalesce(creator, '') LIMIT 1
  ) FROM waiting WHERE waiting.actor IS NOT NULL
)
SELECT actor FROM waiting WHERE actor IS NOT NULL

-- heads: the first claimable task of each of these actors for each of these agents
WITH who (actor) AS {list:actors}, what (agent) AS {list:agents}, heads (head) AS (
  SELECT (
    SELECT id FROM tasks {by:tasks_actor}
    WHERE status = 'pending' AND coalesce(creator, '') = who.actor AND agent = what.agent
      AND (wait IS NULL OR due_at <= :now) AND (cause <> 'goal' OR agent NOT IN {list:last})
      AND (submitter = :owner OR (NOT CAST(:own_only AS BOOLEAN) AND agent NOT IN {list:leave}))
      AND {directory_free}
      AND NOT EXISTS (SELECT 1 FROM tasks held WHERE held.gate_key = tasks.gate_key AND held.status = 'running')
      AND {not_live_elsewhere}
    ORDER BY rank, due_at, id LIMIT 1
  ) FROM who CROSS JOIN what
)
-- (the tasks are found by their ids, because the planner would otherwise use an index of all pending tasks)
SELECT {task} FROM tasks WHERE id IN (SELECT head FROM heads) AND coalesce(status, '') = 'pending'

-- claim: set a task to running, with a new attempt
UPDATE tasks SET status = 'running', attempt = :attempt, lease_owner = :lease_owner, host = :host,
  started_at = :started_at, token_hash = :token_hash, wait = NULL, stop_requested = NULL, pgid = NULL, pgid_mark = NULL
WHERE id = :id AND status = 'pending'

-- next_due: when the next waiting task may start
SELECT min(due_at) FROM tasks WHERE status = 'pending' AND wait IS NOT NULL AND due_at > :now

-- fenced: whether an attempt still owns its task
SELECT 1 FROM tasks WHERE id = :id AND status = 'running' AND attempt = :attempt

-- get: one task
SELECT {task} FROM tasks WHERE id = :id

-- running: running tasks, all or those of one owner
SELECT {task} FROM tasks WHERE status = 'running' AND (CAST(:owner AS TEXT) IS NULL OR lease_owner = :owner)

-- gate_holder: the task that holds a gate
SELECT id FROM tasks WHERE gate_key = :gate AND status = 'running'

-- dir_holder: the task that uses a directory exclusively
SELECT id FROM tasks WHERE dir_key = :dir_key AND status = 'running'

-- prune_steps: the steps of an ended task, unless they are part of the history of a conversation
DELETE FROM steps WHERE task_id = :id AND EXISTS (
  SELECT 1 FROM tasks WHERE id = :id AND (status = 'cancelled' OR substr(session_key, 1, 3) = 'bg:')
)

-- prune_steers: the messages to turns of an ended task
DELETE FROM steers WHERE task_id = :id

-- prune_results: the result of an ended task, unless it waits for a turn, or the open task that took it needs it again
DELETE FROM context_items
WHERE id = 'c_' || substr(CAST(:id AS TEXT), 3) AND CASE status
  WHEN 'taken' THEN NOT EXISTS (SELECT 1 FROM tasks WHERE id = taken_by AND completed_at IS NULL)
  ELSE substr(session_key, 1, 3) = 'bg:' AND NOT EXISTS (
    SELECT 1 FROM tasks WHERE tasks.session_key = context_items.session_key AND completed_at IS NULL
  )
END

-- prune_waiting: what waits in a private session for an ended task from tasks that were pruned before
DELETE FROM context_items
WHERE status = 'queued'
  AND session_key = (SELECT session_key FROM tasks WHERE id = :id AND substr(session_key, 1, 3) = 'bg:')
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = context_items.from_task)
  AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.session_key = context_items.session_key AND completed_at IS NULL)

-- prune_taken: what an ended task took from tasks that were pruned before
DELETE FROM context_items
WHERE status = 'taken' AND taken_by = :id AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = context_items.from_task)

-- prune_deliveries: the deliveries of an ended task
DELETE FROM deliveries WHERE task_id = :id

-- prune_approvals: the approvals of an ended task
DELETE FROM approvals WHERE task_id = :id

-- prune_tags: the tags of an ended task
DELETE FROM tagged WHERE noun = 'task' AND record_id = :id

-- count: by status, in the order of `STATUSES`
SELECT pending, running, done, failed, cancelled FROM event_head

-- prunable: the oldest ended tasks, up to a number, that ended before a time or are too many, and await no result
SELECT id FROM (
  SELECT id FROM tasks WHERE completed_at IS NOT NULL AND completed_at < :before AND {awaits_nothing}
  ORDER BY completed_at LIMIT :step
) AS old
UNION SELECT id FROM (
  SELECT id FROM tasks WHERE completed_at IS NOT NULL AND {awaits_nothing} ORDER BY completed_at LIMIT :too_many
) AS surplus

-- prune: ended tasks; returns the status of each, and its accounts
DELETE FROM tasks WHERE id IN {list:ids} RETURNING id, status, account_id, retry_of

-- related: the tasks with the same root, oldest first
SELECT {task} FROM tasks WHERE id = :root
UNION ALL SELECT {task} FROM (
  SELECT {task} FROM tasks WHERE root_id = :root AND root_id <> id ORDER BY id LIMIT 100
) AS others

-- failed: the newest tasks that failed since a time and were not retried, newest first; looks at 1000 of them at most
SELECT {task} FROM (
  SELECT {task} FROM tasks WHERE status = 'failed' AND completed_at >= :since ORDER BY completed_at DESC LIMIT 1000
) AS newest
WHERE NOT EXISTS (SELECT 1 FROM tasks again WHERE again.internal_key = 'retry:' || newest.id)
ORDER BY completed_at DESC LIMIT :limit

-- lineages: what some tasks grew out of, if they grew out of other work
SELECT id, parent_turn_id, trace_path, source FROM tasks WHERE id IN {list:ids} AND source IS NOT NULL
