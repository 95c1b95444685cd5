-- What a tree of work may spend together, and what it has spent.
CREATE TABLE accounts (
  id TEXT PRIMARY KEY,
  scope TEXT NOT NULL,
  limits TEXT NOT NULL,
  on_budget TEXT NOT NULL,
  tokens INTEGER NOT NULL,
  usd REAL NOT NULL,
  steps INTEGER NOT NULL,
  seconds REAL NOT NULL,
  warned TEXT NOT NULL,
  approval_id TEXT,
  created_at INTEGER NOT NULL
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
  json_patch('{}', json_object('tokens', nullif(max_tokens, 0), 'usd', nullif(max_usd, 0), 'seconds', nullif(max_seconds, 0))),
  'stop', tokens, usd, 0, seconds, '', NULL, created_at
FROM goals;
INSERT OR IGNORE INTO accounts
WITH reports AS (
  SELECT id, usage AS figures FROM tasks WHERE budget IS NOT NULL
  UNION ALL SELECT id, json_extract(budget, '$.before') FROM tasks WHERE budget IS NOT NULL
), spent AS (  -- an agent can report anything: what is not a plausible number counts as nothing
  SELECT reports.id AS id,
    total(CASE WHEN figure.key IN ('input_tokens', 'output_tokens', 'tokens') THEN figure.value END) AS tokens,
    total(CASE WHEN figure.key IN ('cost_usd', 'usd') THEN figure.value END) AS usd,
    total(CASE WHEN figure.key = 'steps' THEN figure.value END) AS steps,
    total(CASE WHEN figure.key = 'seconds' THEN figure.value END) AS seconds
  FROM reports, json_each(reports.figures) AS figure
  WHERE figure.type IN ('integer', 'real') AND figure.value > 0 AND figure.value <= 1e15
  GROUP BY reports.id
)
SELECT coalesce(retry_of, tasks.id), CASE cause WHEN 'automation' THEN 'automation' ELSE 'task' END,
  json_remove(budget, '$.before'), 'stop',
  CAST(coalesce(tokens, 0) AS INTEGER), coalesce(usd, 0.0), CAST(coalesce(steps, 0) AS INTEGER), coalesce(seconds, 0.0),
  '', NULL, created_at
FROM tasks LEFT JOIN spent ON spent.id = tasks.id WHERE budget IS NOT NULL AND cause <> 'goal' ORDER BY tasks.id DESC;
UPDATE tasks SET budget = json_remove(budget, '$.before') WHERE json_type(budget, '$.before') IS NOT NULL;
