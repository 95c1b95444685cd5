-- not_live_elsewhere: whether no other live process has an open agent for the task's session
NOT EXISTS (
    SELECT 1 FROM sessions JOIN instances ON instances.id = sessions.live_owner
    WHERE sessions.key = tasks.session_key AND sessions.live_owner <> :owner
  )

-- directory_free: whether no running task uses the task's directory exclusively; the subquery runs once, not per task
(dir_key IS NULL OR dir_key NOT IN (
    SELECT busy.dir_key FROM tasks busy WHERE busy.status = 'running' AND busy.dir_key IS NOT NULL
  ))

-- event_filter: the condition of an `EventFilter`, without the task
(CAST(:any_kind AS BOOLEAN) OR kind IN {list:kinds} OR EXISTS (
    SELECT 1 FROM {list:beginnings} AS wanted WHERE substr(kind, 1, length(wanted.value)) = wanted.value
  ))
  AND (CAST(:turn_id AS TEXT) IS NULL OR turn_id = :turn_id)
  AND (CAST(:session_key AS TEXT) IS NULL OR session_key = :session_key)
  AND (CAST(:agent_id AS TEXT) IS NULL OR agent_id = :agent_id)
  AND (CAST(:actor AS TEXT) IS NULL OR actor = :actor)

-- session_activity: the running task of a session, its wait, and the number of waiting tasks
(SELECT id FROM tasks WHERE gate_key = sessions.gate_key AND status = 'running' AND session_key = sessions.key),
  (SELECT wait FROM tasks WHERE gate_key = sessions.gate_key AND status = 'running' AND session_key = sessions.key),
  (SELECT count(*) FROM tasks
    WHERE session_key = sessions.key AND status = 'pending' AND substr(session_key, 1, 3) <> 'bg:')
