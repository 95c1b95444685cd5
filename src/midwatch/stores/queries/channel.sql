-- add: a delivery, unless the same notice for the same channel and target exists
INSERT INTO deliveries ({delivery}) VALUES ({delivery_params})
ON CONFLICT (task_id, channel, notice, coalesce(target, '')) DO NOTHING

-- due: deliveries to send now, oldest first
SELECT {delivery} FROM deliveries WHERE status = 'pending' AND due_at <= :now ORDER BY due_at, id LIMIT :limit

-- seal: the notices of a digest are all unsent notices that are due for the same route, and are not in a digest yet;
-- a notice about the progress of a goal has the number of its step
UPDATE deliveries SET digest_id = :digest_id
WHERE status = 'pending' AND due_at <= :now AND digest_id IS NULL AND channel = :channel
  AND coalesce(target, '') = :target AND policy LIKE 'digest:%' AND (
    notice IN {list:notices} OR notice LIKE 'goal_progress:%' OR notice LIKE 'chain_ended:%'
  )

-- list_digest: oldest first
SELECT {delivery} FROM deliveries WHERE digest_id = :digest_id ORDER BY id

-- told_run: the last run of an automation whose end was told on a route
SELECT tasks.status, tasks.result FROM tasks
WHERE tasks.cause = 'automation' AND tasks.cause_id = :automation_id AND EXISTS (
  SELECT 1 FROM deliveries
  WHERE deliveries.task_id = tasks.id AND deliveries.channel = :channel AND coalesce(deliveries.target, '') = :target
    AND deliveries.notice IN ('done', 'failed', 'timed_out', 'cancelled')
) ORDER BY tasks.id DESC LIMIT 1

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
