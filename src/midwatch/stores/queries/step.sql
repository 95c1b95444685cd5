-- of_task: in order
SELECT {step} FROM steps WHERE task_id = :task_id ORDER BY number

-- of_thread: of turns that were not cancelled, in order
SELECT {step} FROM steps
WHERE thread_id = :thread_id AND NOT EXISTS (
  SELECT 1 FROM tasks
  WHERE tasks.id = steps.task_id AND (status = 'cancelled' OR coalesce(retry_of, id) = :without)
)
ORDER BY created_at, task_id, number
