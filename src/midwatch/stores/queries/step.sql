-- of_task: the steps of a task, in order
SELECT {step} FROM steps WHERE task_id = :task_id ORDER BY number

-- of_tries: the steps of the earlier tries of a task, in order; each try was retried once, by the next
WITH RECURSIVE tries (id, place) AS (
  SELECT substr(internal_key, 7), 1 FROM tasks WHERE id = :task_id AND substr(internal_key, 1, 6) = 'retry:'
  UNION ALL SELECT substr(tasks.internal_key, 7), tries.place + 1 FROM tries JOIN tasks ON tasks.id = tries.id
  WHERE substr(tasks.internal_key, 1, 6) = 'retry:'
)
SELECT {step} FROM steps JOIN tries ON tries.id = steps.task_id ORDER BY tries.place DESC, number

-- of_thread: the steps of a thread, in order, without cancelled turns that no other try has continued
SELECT {step} FROM steps
WHERE thread_id = :thread_id AND NOT EXISTS (
  SELECT 1 FROM tasks
  WHERE tasks.id = steps.task_id AND (
    coalesce(retry_of, id) = :without
    OR (status = 'cancelled' AND NOT EXISTS (
      SELECT 1 FROM tasks later
      WHERE later.root_id = tasks.root_id AND later.root_id <> later.id AND later.id > tasks.id
        AND later.retry_of = coalesce(tasks.retry_of, tasks.id) AND later.status <> 'cancelled'
    ))
  )
)
ORDER BY created_at, task_id, number
