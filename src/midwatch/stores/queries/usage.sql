-- add: add the usage of tasks that have ended to the sums
WITH chosen AS (
  SELECT creator, agent, session_key, status, started_at, completed_at, usage FROM tasks
  WHERE id IN {list:ids} AND completed_at IS NOT NULL
), ended AS MATERIALIZED (
  SELECT start, actor, agent, session, model, {usage_totals} FROM ({usage_of_chosen}) AS single
  GROUP BY start, actor, agent, session, model
)
INSERT INTO usage_sums (
  level, start, actor, agent, session, model, tasks, done, failed, cancelled, micros, untold, unpriced, input_tokens,
  output_tokens, cost_usd
)
SELECT level, start / width, CASE WHEN level = 0 THEN '' ELSE actor END, CASE WHEN level = 0 THEN '' ELSE agent END,
  CASE WHEN level = 0 THEN '' ELSE session END, CASE WHEN level = 0 THEN '' ELSE model END, {usage_totals}
FROM ended CROSS JOIN (
  SELECT 0 AS level, 1 AS width UNION ALL SELECT 1, 1 UNION ALL SELECT 2, 96 UNION ALL SELECT 3, 16
) AS levels
WHERE true GROUP BY 1, 2, 3, 4, 5, 6
ON CONFLICT (level, start, actor, agent, session, model) DO UPDATE SET
  tasks = usage_sums.tasks + excluded.tasks, done = usage_sums.done + excluded.done,
  failed = usage_sums.failed + excluded.failed, cancelled = usage_sums.cancelled + excluded.cancelled,
  micros = usage_sums.micros + excluded.micros, untold = usage_sums.untold + excluded.untold,
  unpriced = usage_sums.unpriced + excluded.unpriced,
  input_tokens = coalesce(usage_sums.input_tokens + excluded.input_tokens, usage_sums.input_tokens, excluded.input_tokens),
  output_tokens =
    coalesce(usage_sums.output_tokens + excluded.output_tokens, usage_sums.output_tokens, excluded.output_tokens),
  cost_usd = coalesce(usage_sums.cost_usd + excluded.cost_usd, usage_sums.cost_usd, excluded.cost_usd)

-- sum: the sums of some pieces of a period. There is a statement for each choice of columns: a needless one costs time
WITH pieces AS MATERIALIZED {pieces:pieces}
SELECT {columns}, day, {usage_totals} FROM pieces CROSS JOIN usage_sums
WHERE usage_sums.level = pieces.level AND start >= first AND start < last
GROUP BY {keys}

-- sum_session: the same for one conversation
WITH pieces AS MATERIALIZED {pieces:pieces}
SELECT {usage_groups}, day, {usage_totals} FROM pieces CROSS JOIN usage_sums {by:usage_sums_session}
WHERE session = :session_key AND session <> '' AND usage_sums.level = pieces.level AND start >= first AND start < last
GROUP BY 5, 1, 2, 3, 4

-- bounds: the first and the last quarter of an hour in which a task ended
SELECT (SELECT min(start) FROM usage_sums WHERE level = 0), (SELECT max(start) FROM usage_sums WHERE level = 0)

-- sum_tasks: the usage of the tasks that ended in a part of a quarter of an hour, of one session or of all
WITH chosen AS (
  SELECT creator, agent, session_key, status, started_at, completed_at, usage FROM tasks
  WHERE completed_at IS NOT NULL AND completed_at >= :since AND completed_at < :until
    AND (CAST(:session_key AS TEXT) IS NULL OR session_key = :session_key)
)
SELECT {usage_groups}, CASE WHEN CAST(:day AS BOOLEAN) THEN start END, {usage_totals} FROM ({usage_of_chosen}) AS ended
GROUP BY 5, 1, 2, 3, 4

-- sum_private: the usage of the ended tasks of a private session, which has no sums of its own
WITH chosen AS (
  SELECT creator, agent, session_key, status, started_at, completed_at, usage FROM tasks {by:tasks_session}
  WHERE session_key = :session_key AND completed_at >= :since AND completed_at < :until
)
SELECT {usage_groups}, CASE WHEN CAST(:day AS BOOLEAN) THEN start END, {usage_totals} FROM ({usage_of_chosen}) AS ended
GROUP BY 5, 1, 2, 3, 4

-- ended_between: whether a task ended in a period
SELECT 1 FROM tasks WHERE completed_at IS NOT NULL AND completed_at >= :since AND completed_at < :until LIMIT 1

-- prune: sums of one level that are much older than the newest
DELETE FROM usage_sums
WHERE level = :level AND start < (SELECT max(newest.start) FROM usage_sums newest WHERE newest.level = :level) - :kept
