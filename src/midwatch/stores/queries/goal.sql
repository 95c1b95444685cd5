-- get: one goal
SELECT {goal} FROM goals WHERE id = :id

-- named_open: the open goals with a name
SELECT {goal} FROM goals {by:goals_named}
WHERE name = :name AND name IS NOT NULL AND status IN ('waiting_for_session', 'active', 'paused') LIMIT :limit

-- named: the goals with a name, newest first
SELECT {goal} FROM goals {by:goals_name} WHERE name = :name AND name IS NOT NULL ORDER BY id DESC LIMIT :limit

-- list_scope: the goals of a scope, newest first
SELECT {goal} FROM goals {by:goals_scope}
WHERE scope_kind = :scope_kind AND scope_id = :scope_id
  AND (CAST(:statuses AS TEXT) = '[]' OR status IN {list:statuses})
ORDER BY created_at DESC, id DESC LIMIT :limit

-- list: newest first
SELECT {goal} FROM goals {by:goals_recent} WHERE (CAST(:statuses AS TEXT) = '[]' OR status IN {list:statuses})
ORDER BY created_at DESC, id DESC LIMIT :limit

-- awaits: whether a goal waits for a thread of a session
SELECT 1 FROM goals {by:goals_session}
WHERE session_key = :key AND status IN ('waiting_for_session', 'active', 'paused') AND status = 'waiting_for_session'
LIMIT 1

-- any_open: whether a goal is open
SELECT 1 FROM goals WHERE status IN ('waiting_for_session', 'active', 'paused') LIMIT 1

-- due: goals to wake, earliest deadline first; a goal whose task was transferred waits for the new task
SELECT {goal} FROM goals
WHERE status IN ('waiting_for_session', 'active', 'paused') AND (
  (status <> 'active' AND deadline_at <= :now)
  OR (
    NOT EXISTS (
      SELECT 1 FROM tasks
      WHERE tasks.cause_id = goals.id AND tasks.cause = 'goal' AND tasks.status IN ('pending', 'running')
    ) AND (
      (status = 'active' AND (deadline_at <= :now OR ((next_run_at IS NULL OR next_run_at <= :now) AND NOT EXISTS (
        SELECT 1 FROM handoffs
        WHERE handoffs.root_id = goals.task_id AND handoffs.form = 'transfer' AND handoffs.status = 'in_progress'
      ))))
      OR (status = 'waiting_for_session' AND EXISTS (
        SELECT 1 FROM sessions WHERE sessions.key = goals.session_key AND (
          sessions.thread_id IS NOT NULL OR EXISTS (
            SELECT 1 FROM tasks WHERE tasks.session_key = sessions.key AND tasks.status = 'done'
          )
        )
      ))
    )
  )
  OR (status = 'active' AND deadline_at <= :now AND EXISTS (
    SELECT 1 FROM tasks
    WHERE tasks.cause_id = goals.id AND tasks.cause = 'goal' AND tasks.status IN ('pending', 'running')
      AND coalesce(tasks.stop_requested, '') <> 'cancel' AND (goals.work = 'step' OR tasks.created_at <= :late)
  ))
)
ORDER BY deadline_at, id LIMIT :limit

-- next_at: when the next goal is due, if only time decides
SELECT min(at) FROM (
  SELECT deadline_at AS at FROM goals
  WHERE status IN ('waiting_for_session', 'active', 'paused') AND status <> 'active'
  UNION ALL SELECT CASE WHEN next_run_at < deadline_at AND NOT EXISTS (
    SELECT 1 FROM handoffs
    WHERE handoffs.root_id = goals.task_id AND handoffs.form = 'transfer' AND handoffs.status = 'in_progress'
  ) THEN next_run_at ELSE deadline_at END
  FROM goals WHERE status IN ('waiting_for_session', 'active', 'paused') AND status = 'active' AND NOT EXISTS (
    SELECT 1 FROM tasks
    WHERE tasks.cause_id = goals.id AND tasks.cause = 'goal' AND tasks.status IN ('pending', 'running')
  )
  UNION ALL SELECT CASE
    WHEN goals.work = 'step' OR tasks.created_at + :last < deadline_at THEN deadline_at ELSE tasks.created_at + :last END
  FROM goals CROSS JOIN tasks
  WHERE goals.status IN ('waiting_for_session', 'active', 'paused') AND goals.status = 'active' AND tasks.cause_id = goals.id AND tasks.cause = 'goal'
    AND tasks.status IN ('pending', 'running') AND coalesce(tasks.stop_requested, '') <> 'cancel'
) AS times

-- delete: one goal, if it still has this revision
DELETE FROM goals WHERE id = :id AND revision = :revision
