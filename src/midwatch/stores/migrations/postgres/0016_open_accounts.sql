-- Accounts of open work have spent at least what their tasks have used. Migration 0012 did not add the tasks that other
-- tasks, or the steps of a goal, had delegated, transferred or submitted.
UPDATE accounts SET
  tokens = greatest(accounts.tokens, spent.tokens), usd = greatest(accounts.usd, spent.usd),
  steps = greatest(accounts.steps, spent.steps), seconds = greatest(accounts.seconds, spent.seconds)
FROM (
  WITH open_accounts AS (
    SELECT coalesce(account_id, id) AS id FROM tasks WHERE status = 'pending'
    UNION SELECT coalesce(account_id, id) FROM tasks WHERE status = 'running'
    UNION SELECT id FROM goals WHERE status NOT IN ('complete', 'timeout')
  ), members AS (  -- arrays, so that the indexes are used although the new columns have no statistics yet
    SELECT id, usage FROM tasks WHERE id = ANY (ARRAY(SELECT id FROM open_accounts))
    UNION ALL SELECT account_id, usage FROM tasks
    WHERE account_id IS NOT NULL AND account_id = ANY (ARRAY(SELECT id FROM open_accounts))
  ), figures AS (
    SELECT members.id AS id, names.name AS name,
      CASE WHEN json_typeof(CAST(usage AS json) -> names.name) = 'number'
        THEN CAST(CAST(usage AS json) ->> names.name AS DOUBLE PRECISION) END AS amount
    FROM members CROSS JOIN (
      VALUES ('input_tokens'), ('output_tokens'), ('cost_usd'), ('steps'), ('seconds')
    ) AS names (name)
    WHERE usage IS NOT NULL AND position('\u0000' IN usage) = 0
  )
  SELECT id,
    CAST(trunc(sum(CASE WHEN name IN ('input_tokens', 'output_tokens') THEN amount ELSE 0 END)) AS BIGINT) AS tokens,
    sum(CASE WHEN name = 'cost_usd' THEN amount ELSE 0 END) AS usd,
    CAST(trunc(sum(CASE WHEN name = 'steps' THEN amount ELSE 0 END)) AS BIGINT) AS steps,
    sum(CASE WHEN name = 'seconds' THEN amount ELSE 0 END) AS seconds
  FROM figures WHERE amount > 0 AND amount <= 1e15 GROUP BY id
) AS spent
WHERE accounts.id = spent.id;
