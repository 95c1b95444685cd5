-- take_seqs: reserve consecutive numbers
UPDATE event_head SET last_seq = last_seq + :count RETURNING last_seq

-- append: one event
INSERT INTO events ({event}) VALUES ({event_marks})

-- read: after a seq, in order
SELECT {event} FROM events
WHERE seq > :after
  AND {event_filter}
ORDER BY seq LIMIT :limit

-- read_task: after a seq, of one task
SELECT {event} FROM events
WHERE task_id = :task_id AND seq > :after
  AND {event_filter}
ORDER BY seq LIMIT :limit

-- read_back: before a seq, newest first
SELECT {event} FROM events
WHERE seq < :before
  AND (CAST(:task_id AS TEXT) IS NULL OR task_id = :task_id)
  AND {event_filter}
ORDER BY seq DESC LIMIT :limit

-- last_of_task: the newest event of a task, but for what the watchdog itself said
SELECT {event} FROM events WHERE task_id = :task_id AND kind <> 'watchdog_alert' ORDER BY seq DESC LIMIT 1

-- bounds: of the log
SELECT oldest_seq, last_seq FROM event_head

-- has_late: whether an attempt was already told to be late
SELECT 1 FROM events WHERE task_id = :task_id AND attempt = :attempt AND kind = 'task_late'

-- of_attempt: starts and ends of one attempt, in order
SELECT {event} FROM events
WHERE task_id = :task_id AND attempt = :attempt
  AND kind IN ('turn_start', 'turn_end', 'tool_exec_start', 'tool_exec_end', 'llm_request', 'llm_response')
ORDER BY seq

-- first_fresh: the first event that is not too old
SELECT seq FROM events WHERE seq >= :oldest AND time >= :before ORDER BY seq LIMIT 1

-- prune: everything up to a seq but what open tasks wrote
DELETE FROM events WHERE seq <= :upto
  AND (task_id IS NULL OR task_id NOT IN (
    SELECT id FROM tasks WHERE status = 'pending' UNION ALL SELECT id FROM tasks WHERE status = 'running'
  ))

-- set_oldest: where the log begins now
UPDATE event_head SET oldest_seq = :oldest

-- get_cursor: how far somebody has followed
SELECT seq FROM cursors WHERE name = :name

-- set_cursor: note how far somebody has followed
INSERT INTO cursors (name, seq) VALUES (:name, :seq) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq
