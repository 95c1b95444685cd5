-- queued: those a turn has not taken, oldest first
SELECT {steer} FROM steers WHERE task_id = :task_id AND status = 'queued' ORDER BY number
