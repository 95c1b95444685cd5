-- take_seqs: reserve consecutive numbers, and count how the tasks have changed
UPDATE event_head SET last_seq = last_seq + :count, pending = pending + :pending, running = running + :running,
  done = done + :done, failed = failed + :failed, cancelled = cancelled + :cancelled
RETURNING last_seq

-- touch: write the row again, without a change
UPDATE event_head SET last_seq = last_seq

-- append: store one event
INSERT INTO events ({event}) VALUES ({event_marks})

-- last_of_task: the newest event of a task, except those about alerts of the watchdog
SELECT {event} FROM events
WHERE task_id = :task_id AND kind NOT IN ('watchdog_alert', 'watchdog_acknowledged', 'watchdog_withdrawn')
ORDER BY seq DESC LIMIT 1

-- bounds: the first and last seq of the log
SELECT oldest_seq, last_seq FROM event_head

-- has_late: whether a late result of an attempt was recorded already
SELECT 1 FROM events WHERE task_id = :task_id AND attempt = :attempt AND kind = 'task_late'

-- of_attempt: start and end events of one attempt, in order
SELECT {event} FROM events
WHERE task_id = :task_id AND attempt = :attempt
  AND kind IN ('turn_start', 'turn_end', 'tool_exec_start', 'tool_exec_end', 'llm_request', 'llm_response',
    'probe_start', 'probe_end')
ORDER BY seq

-- prunable: the seqs and times of the first events after a seq
SELECT seq, time FROM events WHERE seq > :after ORDER BY seq LIMIT :limit

-- prune: events of a range, except those of open tasks
DELETE FROM events WHERE seq > :after AND seq <= :upto
  AND coalesce((SELECT status FROM tasks WHERE tasks.id = events.task_id), 'none') NOT IN ('pending', 'running')

-- set_oldest: store the first seq of the log
UPDATE event_head SET oldest_seq = :oldest WHERE oldest_seq < :oldest

-- get_cursor: the last seq that a follower has handled
SELECT seq FROM cursors WHERE name = :name

-- set_cursor: store the last seq that a follower has handled
INSERT INTO cursors (name, seq) VALUES (:name, :seq) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq
