-- touch: make a session or note that it was used
INSERT INTO sessions ({session}) VALUES ({session_params})
ON CONFLICT (key) DO UPDATE SET
  thread_id = CASE WHEN sessions.agent = excluded.agent THEN coalesce(excluded.thread_id, sessions.thread_id)
    ELSE excluded.thread_id END,
  agent = excluded.agent, workdir = coalesce(excluded.workdir, sessions.workdir),
  updated_at = excluded.updated_at, revision = sessions.revision + 1

-- open: make a session as it is, or open a closed one again; nothing where one is open
INSERT INTO sessions ({session}) VALUES ({session_params})
ON CONFLICT (key) DO UPDATE SET
  status = 'idle', updated_at = excluded.updated_at, revision = sessions.revision + 1,
  title = CASE WHEN excluded.title = '' THEN sessions.title ELSE excluded.title END
WHERE sessions.status = 'closed' AND sessions.agent = excluded.agent
RETURNING key

-- ensure: make a session that a task speaks of, unless there is one
INSERT INTO sessions ({session}) VALUES ({session_params}) ON CONFLICT (key) DO NOTHING

-- status: whether it takes messages
SELECT status FROM sessions WHERE key = :key

-- close: no more messages
UPDATE sessions SET status = 'closed', updated_at = :now, revision = revision + 1 WHERE key = :key AND status <> 'closed'

-- say: add a message, or change one that is told again; its number, if there is anything new
INSERT INTO messages (session_key, number, role, text, time, task_id, id, author)
SELECT :session_key, coalesce(max(number), 0) + 1, :role, :text, :time, :task_id, :id, :author
FROM messages WHERE session_key = :session_key
ON CONFLICT (session_key, id) WHERE id <> '' DO UPDATE SET text = excluded.text WHERE messages.text <> excluded.text
RETURNING number

-- hold: its conversation was opened by a process
UPDATE sessions SET live_owner = :owner, epoch = epoch + 1 WHERE key = :key RETURNING epoch

-- release: its conversation is not open there any more
UPDATE sessions SET live_owner = NULL WHERE key = :key AND live_owner = :owner

-- live: those that are open in a process
SELECT key, epoch FROM sessions WHERE live_owner = :owner AND status <> 'closed'

-- restart: whoever has it open is to close it
UPDATE sessions SET epoch = epoch + 1 WHERE key = :key AND live_owner IS NOT NULL

-- live_work: whether anything waits in those
SELECT 1 FROM sessions JOIN tasks ON tasks.session_key = sessions.key
WHERE sessions.live_owner = :owner AND tasks.status = 'pending' AND substr(tasks.session_key, 1, 3) <> 'bg:'
  AND (tasks.wait IS NULL OR tasks.due_at <= :now)
LIMIT 1

-- get: one session
SELECT {session} FROM sessions WHERE key = :key

-- view: one session and what goes on in it
SELECT {session}, {session_activity} FROM sessions WHERE key = :key

-- list: conversations and what goes on in them, most recently used first; the private sessions of tasks are none
SELECT {session}, {session_activity} FROM sessions
WHERE substr(key, 1, 3) <> 'bg:' AND (CAST(:before AS TEXT) IS NULL
  OR updated_at < (SELECT updated_at FROM sessions b WHERE b.key = :before)
  OR (updated_at = (SELECT updated_at FROM sessions b WHERE b.key = :before) AND key > :before))
ORDER BY updated_at DESC, key LIMIT :limit

-- running: what runs in it
SELECT id FROM tasks WHERE gate_key = :gate AND status = 'running' AND session_key = :key

-- queue: what waits in it, in the order it will run
SELECT {task} FROM tasks WHERE session_key = :key AND status = 'pending' AND substr(session_key, 1, 3) <> 'bg:'
ORDER BY rank, due_at, id LIMIT 100

-- last_messages: the newest ones, newest first
SELECT {message} FROM messages WHERE session_key = :key ORDER BY number DESC LIMIT :limit

-- faults: the newest troubles, newest first
SELECT time, payload FROM events WHERE session_key = :key AND kind = 'agent_error' ORDER BY seq DESC LIMIT :limit

-- messages: after a number, in order
SELECT {message} FROM messages WHERE session_key = :key AND number > :after ORDER BY number LIMIT :limit
