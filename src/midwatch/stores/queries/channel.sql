-- add: a delivery, unless the same notice for the same channel exists
INSERT INTO deliveries ({delivery}) VALUES ({delivery_params})
ON CONFLICT (task_id, channel, notice) DO NOTHING

-- due: deliveries to send now, oldest first
SELECT {delivery} FROM deliveries WHERE status = 'pending' AND due_at <= :now ORDER BY due_at, id LIMIT :limit

-- next_due: when the next delivery is due
SELECT min(due_at) FROM deliveries WHERE status = 'pending'

-- get: one delivery
SELECT {delivery} FROM deliveries WHERE id = :id

-- list: newest first
SELECT {delivery} FROM deliveries ORDER BY id DESC LIMIT :limit

-- list_status: newest first, of one status
SELECT {delivery} FROM deliveries WHERE status = :status ORDER BY id DESC LIMIT :limit

-- list_task: newest first, of one task
SELECT {delivery} FROM deliveries
WHERE task_id = :task_id AND (CAST(:status AS TEXT) IS NULL OR status = :status) ORDER BY id DESC LIMIT :limit
