-- queued: results that no turn of a session has taken, oldest first
SELECT {context_item} FROM context_items {by:context_items_queued}
WHERE session_key = :key AND status = 'queued' ORDER BY created_at, id LIMIT :limit

-- waking: the oldest of them whose starter wants to be woken
SELECT {context_item} FROM context_items {by:context_items_queued}
WHERE session_key = :key AND status = 'queued' AND wake = 1 ORDER BY created_at, id LIMIT 1

-- of_task: the results that a task has taken, oldest first
SELECT {context_item} FROM context_items {by:context_items_taken}
WHERE taken_by = :task_id AND status = 'taken' ORDER BY created_at, id

-- count_running: count a result for the running task of a session, so that this task does not end without seeing it
UPDATE tasks SET steers = steers + 1 WHERE gate_key = :gate AND status = 'running' AND session_key = :key RETURNING id

-- count_waiting: the same for a task of the session that waits to go on, or for a turn that another result begins
UPDATE tasks SET steers = steers + 1
WHERE id = (
  SELECT id FROM tasks {by:tasks_taking}
  WHERE session_key = :key AND status = 'pending' AND (attempt > 0 OR cause = 'result') ORDER BY id LIMIT 1
) AND status = 'pending' RETURNING id

-- wakes: the turns that results have begun among the tasks with one root, counted up to a limit
SELECT count(*) FROM (
  SELECT 1 FROM tasks WHERE root_id = :root AND root_id <> id AND cause = 'result' LIMIT :most
) AS wakes

-- put_back: let the next turn take what a cancelled task has taken; nothing wakes for it, because a person cancelled
UPDATE context_items SET status = 'queued', wake = 0
WHERE status = 'taken' AND taken_by = (SELECT coalesce(retry_of, id) FROM tasks WHERE id = :id)

-- follow: let the results that wait for a task without a conversation follow its transfer
UPDATE context_items SET session_key = (SELECT session_key FROM tasks WHERE id = :target)
WHERE status = 'queued' AND session_key = (SELECT session_key FROM tasks WHERE id = :id)
  AND EXISTS (SELECT 1 FROM tasks WHERE id = :target)
