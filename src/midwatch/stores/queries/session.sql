-- touch: make a session or note that it was used
INSERT INTO sessions (key, agent, gate_key, status, thread_id, workdir, created_at, updated_at, revision)
VALUES (:key, :agent, :gate_key, :status, :thread_id, :workdir, :created_at, :updated_at, 0)
ON CONFLICT (key) DO UPDATE SET
  agent = excluded.agent, status = excluded.status, thread_id = coalesce(excluded.thread_id, sessions.thread_id),
  workdir = coalesce(excluded.workdir, sessions.workdir), updated_at = excluded.updated_at,
  revision = sessions.revision + 1

-- say: add a message; a task's prompt only once
INSERT INTO messages (session_key, number, role, text, time, task_id)
SELECT :session_key, coalesce(max(number), 0) + 1, :role, :text, :time, :task_id
FROM messages WHERE session_key = :session_key
ON CONFLICT (task_id) WHERE role = 'user' AND task_id IS NOT NULL DO NOTHING

-- get: one session
SELECT {session} FROM sessions WHERE key = :key

-- list: most recently used first
SELECT {session} FROM sessions ORDER BY updated_at DESC, key LIMIT :limit

-- messages: after a number, in order
SELECT {message} FROM messages WHERE session_key = :key AND number > :after ORDER BY number LIMIT :limit
