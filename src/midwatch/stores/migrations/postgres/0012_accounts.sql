-- What a tree of work may spend together, and what it has spent.
CREATE TABLE accounts (
  id TEXT PRIMARY KEY,
  scope TEXT NOT NULL,
  limits TEXT NOT NULL,
  on_budget TEXT NOT NULL,
  tokens BIGINT NOT NULL,
  usd DOUBLE PRECISION NOT NULL,
  steps BIGINT NOT NULL,
  seconds DOUBLE PRECISION NOT NULL,
  warned TEXT NOT NULL,
  approval_id TEXT,
  created_at BIGINT NOT NULL
);
CREATE INDEX accounts_recent ON accounts (created_at, id);
CREATE UNIQUE INDEX accounts_asking ON accounts (approval_id) WHERE approval_id IS NOT NULL;

-- The account of a task, if it is not the account that has the id of the task.
ALTER TABLE tasks ADD COLUMN account_id TEXT;
ALTER TABLE tasks ADD COLUMN on_budget TEXT NOT NULL DEFAULT 'stop';
CREATE INDEX tasks_account ON tasks (account_id, id) WHERE account_id IS NOT NULL;
UPDATE tasks SET account_id = cause_id WHERE cause = 'goal';
UPDATE tasks SET account_id = coalesce((SELECT account_id FROM tasks root WHERE root.id = tasks.root_id), root_id)
WHERE root_id <> id AND cause <> 'goal';
UPDATE tasks SET account_id = retry_of WHERE retry_of IS NOT NULL AND account_id IS NULL;
ALTER TABLE goals ADD COLUMN on_budget TEXT;
ALTER TABLE automations ADD COLUMN on_budget TEXT;

-- The account and the path of the task whose agent created the automation.
ALTER TABLE automations ADD COLUMN account_id TEXT;
ALTER TABLE automations ADD COLUMN trace_path TEXT;
CREATE INDEX automations_account ON automations (account_id) WHERE account_id IS NOT NULL;

-- Goals, and the last try of each task with a budget: what it has spent includes its earlier tries.
INSERT INTO accounts
SELECT id, 'goal',
  CAST(jsonb_strip_nulls(jsonb_build_object(
    'tokens', nullif(max_tokens, 0), 'usd', nullif(max_usd, 0), 'seconds', nullif(max_seconds, 0)
  )) AS TEXT),
  'stop', tokens, usd, 0, seconds, '', NULL, created_at
FROM goals;
INSERT INTO accounts
SELECT coalesce(retry_of, id), CASE cause WHEN 'automation' THEN 'automation' ELSE 'task' END,
  CAST(CAST(budget AS jsonb) - 'before' AS TEXT), 'stop',
  CAST(trunc(spent.tokens) AS BIGINT), spent.usd, CAST(trunc(spent.steps) AS BIGINT), spent.seconds,
  '', NULL, created_at
FROM tasks CROSS JOIN LATERAL (
  SELECT
    coalesce(sum(amount) FILTER (WHERE name IN ('input_tokens', 'output_tokens', 'tokens')), 0) AS tokens,
    coalesce(sum(amount) FILTER (WHERE name IN ('cost_usd', 'usd')), 0) AS usd,
    coalesce(sum(amount) FILTER (WHERE name = 'steps'), 0) AS steps,
    coalesce(sum(amount) FILTER (WHERE name = 'seconds'), 0) AS seconds
  FROM (  -- an agent can report anything: what is not a plausible number counts as nothing
    SELECT figure.key AS name,
      CASE WHEN json_typeof(figure.value) = 'number'
        THEN CAST(CAST(figure.value AS TEXT) AS DOUBLE PRECISION) END AS amount
    FROM (
      SELECT * FROM json_each(CASE WHEN position('\u0000' IN usage) = 0 THEN CAST(usage AS json) END)
      UNION ALL SELECT * FROM json_each(CAST(budget AS json) -> 'before')
    ) AS figure
  ) AS figures WHERE amount > 0 AND amount <= 1e15
) AS spent
WHERE budget IS NOT NULL AND cause <> 'goal' ORDER BY id DESC
ON CONFLICT (id) DO NOTHING;
UPDATE tasks SET budget = CAST(CAST(budget AS jsonb) - 'before' AS TEXT)
WHERE budget IS NOT NULL AND CAST(budget AS jsonb) -> 'before' IS NOT NULL;
