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

-- list: newest first
SELECT {task} FROM tasks
WHERE (CAST(:before AS TEXT) IS NULL OR id < :before)
  AND (CAST(:statuses AS TEXT) = '[]' OR status IN {list:statuses})
  AND (CAST(:agent AS TEXT) IS NULL OR agent = :agent)
  AND (CAST(:session_key AS TEXT) IS NULL OR session_key = :session_key)
  AND (CAST(:creator AS TEXT) IS NULL OR creator = :creator)
ORDER BY id DESC LIMIT :limit

-- count: by status
SELECT 'pending', count(*) FROM tasks WHERE status = 'pending'
UNION ALL SELECT 'running', count(*) FROM tasks WHERE status = 'running'
UNION ALL SELECT status, count(*) FROM tasks WHERE completed_at IS NOT NULL GROUP BY status

-- running: running tasks, all or those of one owner
SELECT {task} FROM tasks WHERE status = 'running' AND (CAST(:owner AS TEXT) IS NULL OR lease_owner = :owner)

-- gate_holder: the task that holds a gate
SELECT id FROM tasks WHERE gate_key = :gate AND status = 'running'

-- dir_holder: the task that uses a directory exclusively
SELECT id FROM tasks WHERE dir_key = :dir_key AND status = 'running'

-- prunable: ended tasks that are too old or too many
SELECT id FROM (
  SELECT id, completed_at, row_number() OVER (ORDER BY completed_at DESC) AS place
  FROM tasks WHERE completed_at IS NOT NULL
) AS ended WHERE completed_at < :before OR place > :keep LIMIT 1000

-- prune: an ended task
DELETE FROM tasks WHERE id = :id

-- prune_steps: the steps of an ended task, unless they are part of the history of a conversation
DELETE FROM steps WHERE task_id = :id AND EXISTS (
  SELECT 1 FROM tasks WHERE id = :id AND (status = 'cancelled' OR substr(session_key, 1, 3) = 'bg:')
)

-- prune_steers: the messages to turns of an ended task
DELETE FROM steers WHERE task_id = :id

-- prune_deliveries: the deliveries of an ended task
DELETE FROM deliveries WHERE task_id = :id

-- prune_approvals: the approvals of an ended task
DELETE FROM approvals WHERE task_id = :id

-- usage: the sums of the usage of ended tasks, grouped as requested
SELECT
  CASE WHEN CAST(:actor AS BOOLEAN) THEN coalesce(creator, '') END,
  CASE WHEN CAST(:agent AS BOOLEAN) THEN agent END,
  CASE WHEN CAST(:session AS BOOLEAN) THEN CASE WHEN substr(session_key, 1, 3) = 'bg:' THEN '' ELSE session_key END END,
  CASE WHEN CAST(:model AS BOOLEAN) THEN coalesce({text:usage.model}, '') END,
  CASE WHEN CAST(:day AS BOOLEAN) THEN completed_at / 900000000 END,
  count(*),
  sum(CASE WHEN status = 'done' THEN 1 ELSE 0 END),
  sum(CASE WHEN status = 'failed' THEN 1 ELSE 0 END),
  sum(CASE WHEN status = 'cancelled' THEN 1 ELSE 0 END),
  sum(CASE WHEN completed_at > started_at THEN completed_at - started_at ELSE 0 END),
  sum(CASE WHEN started_at IS NOT NULL AND coalesce(tokens_in, tokens_out, cost) IS NULL THEN 1 ELSE 0 END),
  sum(CASE WHEN started_at IS NOT NULL AND cost IS NULL THEN 1 ELSE 0 END),
  sum(tokens_in), sum(tokens_out), sum(cost)
FROM (
  SELECT creator, agent, session_key, status, started_at, completed_at, usage,
    {number:usage.input_tokens} AS tokens_in, {number:usage.output_tokens} AS tokens_out,
    {number:usage.cost_usd} AS cost
  FROM tasks WHERE completed_at IS NOT NULL AND completed_at >= :since AND completed_at < :until
    AND (CAST(:session_key AS TEXT) IS NULL OR session_key = :session_key)
) AS ended
GROUP BY 1, 2, 3, 4, 5

-- related: the tasks with the same root, oldest first
SELECT {task} FROM tasks WHERE id = :root
UNION ALL SELECT {task} FROM (
  SELECT {task} FROM tasks WHERE root_id = :root AND root_id <> id ORDER BY id LIMIT 100
) AS others

-- failed: tasks that failed since a time and were not retried, newest first
SELECT {task} FROM tasks
WHERE status = 'failed' AND completed_at IS NOT NULL AND completed_at >= :since
  AND NOT EXISTS (SELECT 1 FROM tasks again WHERE again.internal_key = 'retry:' || tasks.id)
ORDER BY completed_at DESC LIMIT :limit
