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
  AND (CAST(:tree AS TEXT) IS NULL OR task_id = :tree
    OR replace('/' || trace_path || '/', '/' || :tree || '/', '') <> '/' || trace_path || '/')
  AND (CAST(:turn_id AS TEXT) IS NULL OR turn_id = :turn_id)
  AND (CAST(:session_key AS TEXT) IS NULL OR session_key = :session_key)
  AND (CAST(:agent_id AS TEXT) IS NULL OR agent_id = :agent_id)
  AND (CAST(:actor AS TEXT) IS NULL OR actor = :actor)

-- session_activity: the running task of a session, its wait, and the number of waiting tasks
(SELECT id FROM tasks WHERE gate_key = sessions.gate_key AND status = 'running' AND session_key = sessions.key),
  (SELECT wait FROM tasks WHERE gate_key = sessions.gate_key AND status = 'running' AND session_key = sessions.key),
  (SELECT count(*) FROM tasks {by:tasks_queue}
    WHERE session_key = sessions.key AND status = 'pending' AND substr(session_key, 1, 3) <> 'bg:')

-- open_tasks: the ids of the open tasks
SELECT id FROM tasks {by:tasks_claim} WHERE status = 'pending'
  UNION ALL SELECT id FROM tasks {by:tasks_gate} WHERE status = 'running'

-- awaits_nothing: whether no result of an open task will return to this task
NOT EXISTS (
  SELECT 1 FROM tasks back {by:tasks_returning} WHERE back.returns_to = tasks.id AND back.completed_at IS NULL
)

-- task_filter: the condition of a `TaskFilter`
(CAST(:statuses AS TEXT) = '[]' OR status IN {list:statuses})
  AND (CAST(:agent AS TEXT) IS NULL OR agent = :agent)
  AND (CAST(:session_key AS TEXT) IS NULL OR session_key = :session_key)
  AND (CAST(:creator AS TEXT) IS NULL OR creator = :creator)
  AND (CAST(:tags AS TEXT) = '[]' OR NOT EXISTS (
    SELECT 1 FROM {list:tags} AS wanted WHERE NOT EXISTS (
      SELECT 1 FROM tagged AS has WHERE has.noun = 'task' AND has.tag = wanted.value AND has.record_id = tasks.id
    )
  ))

-- automation_tags: whether an automation has all the tags
(CAST(:tags AS TEXT) = '[]' OR NOT EXISTS (
    SELECT 1 FROM {list:tags} AS wanted WHERE NOT EXISTS (
      SELECT 1 FROM tagged WHERE noun = 'automation' AND tag = wanted.value AND record_id = automations.id
    )
  ))

-- goal_tags: whether a goal has all the tags
(CAST(:tags AS TEXT) = '[]' OR NOT EXISTS (
    SELECT 1 FROM {list:tags} AS wanted WHERE NOT EXISTS (
      SELECT 1 FROM tagged WHERE noun = 'goal' AND tag = wanted.value AND record_id = goals.id
    )
  ))

-- handoff_filter: the condition of a `HandoffFilter`
(CAST(:statuses AS TEXT) = '[]' OR status IN {list:statuses})
  AND (CAST(:agent AS TEXT) IS NULL OR from_agent = :agent OR to_agent = :agent)

-- handoffs_of_root: the ids of the handoffs of a root task
SELECT id FROM handoffs WHERE root_id = :root_id UNION SELECT id FROM handoffs WHERE task_id = :root_id

-- worktree_filter: the condition of a `WorktreeFilter`
status IN {list:statuses}

-- usage_groups: what the rows of a query about usage are grouped by, except the day
CASE WHEN CAST(:actor AS BOOLEAN) THEN actor END, CASE WHEN CAST(:agent AS BOOLEAN) THEN agent END,
  CASE WHEN CAST(:session AS BOOLEAN) THEN session END, CASE WHEN CAST(:model AS BOOLEAN) THEN model END

-- account_spent: what the tasks of an account have spent: as they say at their ends, or by their events if this is more
WITH members AS MATERIALIZED (
  SELECT id, usage FROM tasks WHERE id = :id UNION ALL SELECT id, usage FROM tasks WHERE account_id = :id
), reports AS (
  SELECT id, 0 AS source, usage, {number:usage.steps} AS starts, 0 AS ends, {number:usage.seconds} AS seconds FROM members
  UNION ALL SELECT task_id, 1, {object:payload.usage},
    CASE WHEN kind IN ('llm_request', 'tool_exec_start') THEN 1
      WHEN {object:payload.usage} IS NULL AND {text:payload.finish_reason} IN ('error', 'interrupted', 'cut_off') THEN -1 ELSE 0 END,
    CASE WHEN kind IN ('llm_response', 'tool_exec_end') THEN 1 ELSE 0 END, 0
  FROM events WHERE task_id IN (SELECT id FROM members)
    AND kind IN ('llm_request', 'llm_response', 'tool_exec_start', 'tool_exec_end')
), figures AS (
  SELECT id, source, starts, ends, seconds, {number:usage.input_tokens} AS tokens_in,
    {number:usage.output_tokens} AS tokens_out, {number:usage.cost_usd} AS usd
  FROM reports
), sums AS (
  SELECT id, coalesce(sum(CASE WHEN tokens_in > 0 AND tokens_in <= 1e15 THEN tokens_in END), 0)
      + coalesce(sum(CASE WHEN tokens_out > 0 AND tokens_out <= 1e15 THEN tokens_out END), 0) AS tokens,
    coalesce(sum(CASE WHEN usd > 0 AND usd <= 1e15 THEN usd END), 0) AS usd,
    coalesce(sum(starts), 0) AS starts, sum(ends) AS ends, coalesce(sum(seconds), 0) AS seconds
  FROM figures GROUP BY id, source
), largest AS (
  SELECT max(tokens) AS tokens, max(usd) AS usd, max(CASE WHEN ends > starts THEN ends ELSE starts END) AS steps,
    max(seconds) AS seconds
  FROM sums GROUP BY id
)
SELECT CAST(coalesce(sum(tokens), 0) AS BIGINT) AS tokens, coalesce(sum(usd), 0.0) AS usd,
  CAST(coalesce(sum(steps), 0) AS BIGINT) AS steps, coalesce(sum(seconds), 0.0) AS seconds
FROM largest

-- usage_totals: the sums of a group
sum(tasks) AS tasks, sum(done) AS done, sum(failed) AS failed, sum(cancelled) AS cancelled, sum(micros) AS micros,
  sum(untold) AS untold, sum(unpriced) AS unpriced, sum(input_tokens) AS input_tokens,
  sum(output_tokens) AS output_tokens, sum(cost_usd) AS cost_usd

-- usage_of_chosen: the usage of each task in `chosen`; a figure so large that sums would overflow is not counted
SELECT coalesce(creator, '') AS actor, agent,
    CASE WHEN substr(session_key, 1, 3) = 'bg:' THEN '' ELSE session_key END AS session,
    model, completed_at / 900000000 AS start, 1 AS tasks,
    CASE WHEN status = 'done' THEN 1 ELSE 0 END AS done, CASE WHEN status = 'failed' THEN 1 ELSE 0 END AS failed,
    CASE WHEN status = 'cancelled' THEN 1 ELSE 0 END AS cancelled,
    CASE WHEN completed_at > started_at THEN completed_at - started_at ELSE 0 END AS micros,
    CASE WHEN started_at IS NOT NULL AND coalesce(tokens_in, tokens_out, cost) IS NULL THEN 1 ELSE 0 END AS untold,
    CASE WHEN started_at IS NOT NULL AND cost IS NULL THEN 1 ELSE 0 END AS unpriced,
    tokens_in AS input_tokens, tokens_out AS output_tokens, cost AS cost_usd
  FROM (
    SELECT creator, agent, session_key, status, started_at, completed_at, coalesce({text:usage.model}, '') AS model,
      {number:usage.input_tokens} AS tokens_in, {number:usage.output_tokens} AS tokens_out,
      {number:usage.cost_usd} AS cost
    FROM chosen
  ) AS figures

-- open_handoff: whether a handoff has not ended
status IN ('pending', 'accepted', 'in_progress')

-- handoff_account: the account of the work of a handoff
coalesce((
    SELECT coalesce(tasks.account_id, tasks.id) FROM tasks
    WHERE tasks.id = coalesce(handoffs.task_id, handoffs.source_task)
  ), '')

-- budget_questions: the questions about budgets, each with the account of the work that waits for the answer
SELECT approvals.id, approvals.status, approvals.created_at, approvals.resolved_at,
    coalesce(tasks.account_id, tasks.id) AS account
  FROM approvals JOIN accounts ON accounts.approval_id = approvals.id JOIN tasks ON tasks.id = approvals.task_id

-- handoff_waits: whether the deadline of a handoff stands still, because people are asked about a budget of its work
{handoff_account} IN (SELECT question.account FROM ({budget_questions}) AS question WHERE question.status = 'pending')

-- due_handoff: whether a handoff must expire now
{open_handoff} AND deadline_at <= :now AND NOT {handoff_waits}
