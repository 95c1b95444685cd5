-- touch: create a session, or record its use
INSERT INTO sessions ({session}) VALUES ({session_params})
ON CONFLICT (key) DO UPDATE SET
  thread_id = CASE WHEN sessions.agent = excluded.agent THEN coalesce(excluded.thread_id, sessions.thread_id)
    ELSE excluded.thread_id END,
  agent = excluded.agent, workdir = coalesce(excluded.workdir, sessions.workdir),
  updated_at = excluded.updated_at, revision = sessions.revision + 1

-- open: create a session or reopen a closed one; returns no row if it is open already
INSERT INTO sessions ({session}) VALUES ({session_params})
ON CONFLICT (key) DO UPDATE SET
  status = 'idle', updated_at = excluded.updated_at, revision = sessions.revision + 1,
  title = CASE WHEN excluded.title = '' THEN sessions.title ELSE excluded.title END,
  approvals = coalesce(excluded.approvals, sessions.approvals)
WHERE sessions.status = 'closed' AND sessions.agent = excluded.agent
RETURNING key

-- ensure: create the session of a task, unless it exists
INSERT INTO sessions ({session}) VALUES ({session_params}) ON CONFLICT (key) DO NOTHING

-- status: the status of a session
SELECT status FROM sessions WHERE key = :key

-- close: set a session to closed
UPDATE sessions SET status = 'closed', updated_at = :now, revision = revision + 1 WHERE key = :key AND status <> 'closed'

-- add_message: add a message, or change the text of an existing one; returns its number if anything is new
INSERT INTO messages (session_key, number, role, text, time, task_id, id, author)
SELECT :session_key, coalesce(max(number), 0) + 1, :role, :text, :time, :task_id, :id, :author
FROM messages WHERE session_key = :session_key
ON CONFLICT (session_key, id) WHERE id <> '' DO UPDATE SET text = excluded.text WHERE messages.text <> excluded.text
RETURNING number

-- hold: store the process that has opened the agent of a session
UPDATE sessions SET live_owner = :owner, epoch = epoch + 1 WHERE key = :key RETURNING epoch

-- release: the process has closed the agent of the session
UPDATE sessions SET live_owner = NULL WHERE key = :key AND live_owner = :owner

-- live: the sessions that a process holds
SELECT key, epoch FROM sessions WHERE live_owner = :owner AND status <> 'closed'

-- restart: request that the holder of a session closes its agent
UPDATE sessions SET epoch = epoch + 1 WHERE key = :key AND live_owner IS NOT NULL

-- live_work: whether a task waits in a session that a process holds
SELECT 1 FROM sessions JOIN tasks {by:tasks_queue} ON tasks.session_key = sessions.key
WHERE sessions.live_owner = :owner AND tasks.status = 'pending' AND substr(tasks.session_key, 1, 3) <> 'bg:'
  AND (tasks.wait IS NULL OR tasks.due_at <= :now)
LIMIT 1

-- get: one session
SELECT {session} FROM sessions WHERE key = :key

-- managers: creator and manage mode of the automations and open goals that use a session
SELECT creator, manage_mode FROM automations WHERE session_key IN (:key, :base) AND status <> 'deleted'
UNION SELECT creator, manage_mode FROM goals
WHERE session_key IN (:key, :base) AND status IN ('waiting_for_session', 'active', 'paused')

-- view: one session and its activity
SELECT {session}, {session_activity} FROM sessions WHERE key = :key

-- list: sessions and their activity, most recently used first, without the private sessions of tasks
SELECT {session}, {session_activity} FROM sessions {by:sessions_recent}
WHERE substr(key, 1, 3) <> 'bg:' ORDER BY updated_at DESC, key LIMIT :limit

-- list_before: the same after the session of the page before
SELECT {session}, {session_activity} FROM sessions {by:sessions_recent}
WHERE substr(key, 1, 3) <> 'bg:' AND updated_at <= (SELECT updated_at FROM sessions b WHERE b.key = :before)
  AND (updated_at < (SELECT updated_at FROM sessions b WHERE b.key = :before) OR key > :before)
ORDER BY updated_at DESC, key LIMIT :limit

-- running: the running task of a session
SELECT id FROM tasks WHERE gate_key = :gate AND status = 'running' AND session_key = :key

-- queue: the waiting tasks of a session, in the order in which they will run
SELECT {task} FROM tasks {by:tasks_queue}
WHERE session_key = :key AND status = 'pending' AND substr(session_key, 1, 3) <> 'bg:'
ORDER BY rank, due_at, id LIMIT 100

-- last_messages: the newest messages, newest first
SELECT {message} FROM messages WHERE session_key = :key ORDER BY number DESC LIMIT :limit

-- faults: the newest errors of the agent, newest first
SELECT time, payload FROM events WHERE session_key = :key AND kind = 'agent_error' ORDER BY seq DESC LIMIT :limit

-- messages: messages after a number, in order
SELECT {message} FROM messages WHERE session_key = :key AND number > :after ORDER BY number LIMIT :limit
