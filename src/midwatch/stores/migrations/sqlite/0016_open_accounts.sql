-- Accounts of open work have spent at least what their tasks have used. Migration 0012 did not add the tasks that other
-- tasks, or the steps of a goal, had delegated, transferred or submitted.
UPDATE accounts SET
  tokens = max(accounts.tokens, spent.tokens), usd = max(accounts.usd, spent.usd),
  steps = max(accounts.steps, spent.steps), seconds = max(accounts.seconds, spent.seconds)
FROM (
  WITH open_accounts AS (
    SELECT coalesce(account_id, id) AS id FROM tasks WHERE status = 'pending'
    UNION SELECT coalesce(account_id, id) FROM tasks WHERE status = 'running'
    UNION SELECT id FROM goals WHERE status NOT IN ('complete', 'timeout')
  ), members AS (
    SELECT open_accounts.id AS id, usage FROM open_accounts JOIN tasks ON tasks.id = open_accounts.id
    UNION ALL SELECT open_accounts.id, usage FROM open_accounts JOIN tasks ON tasks.account_id = open_accounts.id
  ), figures AS (
    SELECT members.id AS id, figure.key AS name, figure.value AS amount FROM members, json_each(members.usage) AS figure
    WHERE figure.type IN ('integer', 'real') AND figure.value > 0 AND figure.value <= 1e15
  )
  SELECT id,
    CAST(total(CASE WHEN name IN ('input_tokens', 'output_tokens') THEN amount END) AS INTEGER) AS tokens,
    total(CASE WHEN name = 'cost_usd' THEN amount END) AS usd,
    CAST(total(CASE WHEN name = 'steps' THEN amount END) AS INTEGER) AS steps,
    total(CASE WHEN name = 'seconds' THEN amount END) AS seconds
  FROM figures GROUP BY id
) AS spent
WHERE accounts.id = spent.id;
