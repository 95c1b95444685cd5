-- get: one alert
SELECT {alert} FROM alerts WHERE id = :id

-- find_open: the open alert about a problem
SELECT {alert} FROM alerts WHERE subject = :subject AND kind = :kind AND status <> 'withdrawn'

-- open: alerts that are not withdrawn, oldest first
SELECT {alert} FROM alerts {by:alerts_open} WHERE status <> 'withdrawn' ORDER BY raised_at, id

-- prune: alerts that were withdrawn long ago
DELETE FROM alerts WHERE status = 'withdrawn' AND withdrawn_at < :before

-- late_agents: how many pending tasks of each agent have been due for long
SELECT agent, count(*) FROM tasks {by:tasks_actor} WHERE status = 'pending' AND due_at <= :before GROUP BY agent

-- oldest_late: the task of an agent that has been due the longest, of the oldest 1000
SELECT {task} FROM tasks WHERE id = (
  SELECT id FROM (
    SELECT id, due_at FROM tasks {by:tasks_actor}
    WHERE status = 'pending' AND agent = :agent AND due_at <= :before ORDER BY due_at, id LIMIT 1000
  ) AS oldest
  WHERE NOT CAST(:free AS BOOLEAN) OR EXISTS (
    SELECT 1 FROM tasks WHERE tasks.id = oldest.id AND {directory_free}
      AND NOT EXISTS (SELECT 1 FROM tasks held WHERE held.gate_key = tasks.gate_key AND held.status = 'running')
  )
  ORDER BY due_at, id LIMIT 1
)

-- behind_sessions: for each gate with a running task, how many due tasks of conversations wait for it, and the oldest
SELECT tasks.gate_key, count(*), held.id, (
  SELECT id FROM tasks first {by:tasks_behind}
  WHERE first.status = 'pending' AND substr(first.session_key, 1, 3) <> 'bg:' AND first.gate_key = held.gate_key
  ORDER BY first.due_at, first.id LIMIT 1
)
FROM tasks held {by:tasks_gate}
JOIN tasks {by:tasks_behind} ON tasks.gate_key = held.gate_key AND tasks.status = 'pending'
  AND substr(tasks.session_key, 1, 3) <> 'bg:' AND tasks.due_at <= :before
WHERE held.status = 'running'
GROUP BY tasks.gate_key, held.gate_key, held.id ORDER BY min(tasks.due_at) LIMIT :limit

-- behind_directories: the same for each directory that a running task has for itself
SELECT tasks.dir_key, count(*), held.id, (
  SELECT id FROM tasks first {by:tasks_behind_directory}
  WHERE first.status = 'pending' AND first.dir_key IS NOT NULL AND first.dir_key = held.dir_key
  ORDER BY first.due_at, first.id LIMIT 1
)
FROM tasks held {by:tasks_directory}
JOIN tasks {by:tasks_behind_directory} ON tasks.dir_key = held.dir_key AND tasks.status = 'pending'
  AND tasks.dir_key IS NOT NULL AND tasks.due_at <= :before
WHERE held.status = 'running' AND held.dir_key IS NOT NULL
GROUP BY tasks.dir_key, held.dir_key, held.id ORDER BY min(tasks.due_at) LIMIT :limit

-- unanswered: open questions, oldest first
SELECT {approval} FROM approvals {by:approvals_open} WHERE status = 'pending' AND created_at <= :before
ORDER BY created_at, id LIMIT :limit

-- paused_automations: automations that are paused for other reasons than the expected ones, oldest first
SELECT {automation} FROM automations {by:automations_paused}
WHERE status = 'paused' AND paused_why NOT IN {list:expected} AND paused_why NOT LIKE '% interrupted its run'
  AND paused_why NOT LIKE '% its step t!_%' ESCAPE '!'
  AND paused_why NOT LIKE 'set % declares it as not enabled'
ORDER BY updated_at, id LIMIT :limit

-- paused_goals: the same for goals
SELECT {goal} FROM goals {by:goals_paused}
WHERE status = 'paused' AND paused_why NOT IN {list:expected} AND paused_why NOT LIKE '% interrupted its run'
  AND paused_why NOT LIKE '% its step t!_%' ESCAPE '!'
  AND paused_why NOT LIKE 'set % declares it as not enabled'
ORDER BY updated_at, id LIMIT :limit

-- undelivered: the newest failed deliveries
SELECT channel, created_at FROM deliveries WHERE status = 'failed' ORDER BY id DESC LIMIT 1000

-- count_automations: active automations that have a next run or a trigger
SELECT (
  SELECT count(*) FROM automations {by:automations_due} WHERE status = 'active' AND next_run_at IS NOT NULL
) + (
  SELECT count(*) FROM automations WHERE status = 'active' AND next_run_at IS NULL AND id IN (
    SELECT automation_id FROM triggers WHERE removed_at IS NULL
  )
)

-- count_goals: open goals that are not paused
SELECT count(*) FROM goals {by:goals_open}
WHERE status IN ('waiting_for_session', 'active', 'paused') AND status <> 'paused'

-- last_sign: the newest event of a task that is not about an alert or a notice
SELECT {event} FROM events
WHERE task_id = :task_id AND kind NOT IN (
  'watchdog_alert', 'watchdog_acknowledged', 'watchdog_withdrawn', 'delivery_sent', 'delivery_failed', 'delivery_retried'
)
ORDER BY seq DESC LIMIT 1

-- waits: when an attempt asked people or handed work over and waited, and when each wait ended
SELECT created_at, resolved_at FROM approvals WHERE task_id = :id AND attempt = :attempt
UNION ALL SELECT created_at, completed_at FROM handoffs
WHERE root_id = :root AND source_task = :id AND form = 'delegate' AND returns IS NULL
