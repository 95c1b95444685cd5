-- queued: messages that the turn has not received, oldest first
SELECT {steer} FROM steers WHERE task_id = :task_id AND status = 'queued' ORDER BY number

-- find_key: the message that its actor sent with this key
SELECT {steer} FROM steers WHERE coalesce(actor, '') = :actor AND idempotency_key = :key

-- count: count a message for a running task; returns its number
UPDATE tasks SET steers = steers + 1 WHERE id = :id AND status = 'running' RETURNING steers
