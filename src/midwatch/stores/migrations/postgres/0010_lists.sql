-- Every list is read by an index, and every sum is kept with the change that causes it.

-- The number of tasks by status. They are in the row of the log's head, because each commit writes this row anyway.
ALTER TABLE event_head ADD COLUMN pending BIGINT NOT NULL DEFAULT 0;
ALTER TABLE event_head ADD COLUMN running BIGINT NOT NULL DEFAULT 0;
ALTER TABLE event_head ADD COLUMN done BIGINT NOT NULL DEFAULT 0;
ALTER TABLE event_head ADD COLUMN failed BIGINT NOT NULL DEFAULT 0;
ALTER TABLE event_head ADD COLUMN cancelled BIGINT NOT NULL DEFAULT 0;
UPDATE event_head SET
  pending = (SELECT count(*) FROM tasks WHERE status = 'pending'),
  running = (SELECT count(*) FROM tasks WHERE status = 'running'),
  done = (SELECT count(*) FROM tasks WHERE status = 'done'),
  failed = (SELECT count(*) FROM tasks WHERE status = 'failed'),
  cancelled = (SELECT count(*) FROM tasks WHERE status = 'cancelled');

-- The usage of ended tasks. Level 0 are the totals of each quarter of an hour since the epoch, level 1 the sums of each
-- quarter of an hour by actor, agent, session and model, and level 2 the same sums of each day in UTC.
CREATE TABLE usage_sums (
  level BIGINT NOT NULL,
  start BIGINT NOT NULL,
  actor TEXT NOT NULL,
  agent TEXT NOT NULL,
  session TEXT NOT NULL,
  model TEXT NOT NULL,
  tasks BIGINT NOT NULL,
  done BIGINT NOT NULL,
  failed BIGINT NOT NULL,
  cancelled BIGINT NOT NULL,
  micros BIGINT NOT NULL,
  untold BIGINT NOT NULL,
  unpriced BIGINT NOT NULL,
  input_tokens DOUBLE PRECISION,
  output_tokens DOUBLE PRECISION,
  cost_usd DOUBLE PRECISION,
  PRIMARY KEY (level, start, actor, agent, session, model)
);
CREATE INDEX usage_sums_session ON usage_sums (session, level, start) WHERE session <> '';
INSERT INTO usage_sums
SELECT 1, completed_at / 900000000, coalesce(creator, ''), agent,
  CASE WHEN substr(session_key, 1, 3) = 'bg:' THEN '' ELSE session_key END,
  coalesce(CASE WHEN position('\u0000' IN usage) = 0 AND json_typeof(CAST(usage AS json) -> 'model') = 'string'
    THEN CAST(usage AS json) ->> 'model' END, ''),
  count(*), count(*) FILTER (WHERE status = 'done'), count(*) FILTER (WHERE status = 'failed'),
  count(*) FILTER (WHERE status = 'cancelled'),
  sum(CASE WHEN completed_at > started_at THEN completed_at - started_at ELSE 0 END),
  count(*) FILTER (WHERE started_at IS NOT NULL AND coalesce(tokens_in, tokens_out, cost) IS NULL),
  count(*) FILTER (WHERE started_at IS NOT NULL AND cost IS NULL),
  sum(tokens_in), sum(tokens_out), sum(cost)
FROM (
  SELECT *,
    CASE WHEN position('\u0000' IN usage) = 0 AND json_typeof(CAST(usage AS json) -> 'input_tokens') = 'number'
      AND abs(CAST(CAST(usage AS json) ->> 'input_tokens' AS DOUBLE PRECISION)) < 1e150
      THEN CAST(CAST(usage AS json) ->> 'input_tokens' AS DOUBLE PRECISION) END AS tokens_in,
    CASE WHEN position('\u0000' IN usage) = 0 AND json_typeof(CAST(usage AS json) -> 'output_tokens') = 'number'
      AND abs(CAST(CAST(usage AS json) ->> 'output_tokens' AS DOUBLE PRECISION)) < 1e150
      THEN CAST(CAST(usage AS json) ->> 'output_tokens' AS DOUBLE PRECISION) END AS tokens_out,
    CASE WHEN position('\u0000' IN usage) = 0 AND json_typeof(CAST(usage AS json) -> 'cost_usd') = 'number'
      AND abs(CAST(CAST(usage AS json) ->> 'cost_usd' AS DOUBLE PRECISION)) < 1e150
      THEN CAST(CAST(usage AS json) ->> 'cost_usd' AS DOUBLE PRECISION) END AS cost
  FROM tasks WHERE completed_at IS NOT NULL
) AS ended GROUP BY 1, 2, 3, 4, 5, 6;
INSERT INTO usage_sums
SELECT 0, start, '', '', '', '', sum(tasks), sum(done), sum(failed), sum(cancelled), sum(micros), sum(untold),
  sum(unpriced), sum(input_tokens), sum(output_tokens), sum(cost_usd)
FROM usage_sums WHERE level = 1 GROUP BY start;
INSERT INTO usage_sums
SELECT 2, start / 96, actor, agent, session, model, sum(tasks), sum(done), sum(failed), sum(cancelled), sum(micros),
  sum(untold), sum(unpriced), sum(input_tokens), sum(output_tokens), sum(cost_usd)
FROM usage_sums WHERE level = 1 GROUP BY start / 96, actor, agent, session, model;

-- Ended tasks, oldest first: to prune them, and to sum the usage of a part of a quarter of an hour.
DROP INDEX tasks_spent;
DROP INDEX tasks_ended;
CREATE INDEX tasks_ended ON tasks (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX tasks_failed ON tasks (completed_at) WHERE status = 'failed';
-- The lists of tasks.
CREATE INDEX tasks_unfinished ON tasks (id) WHERE status IN ('failed', 'cancelled');
CREATE INDEX tasks_session ON tasks (session_key, id);
CREATE INDEX tasks_creator ON tasks (creator, id) WHERE creator IS NOT NULL;
CREATE INDEX tasks_agent ON tasks (agent, id);
DROP INDEX tasks_kin;
CREATE INDEX tasks_kin ON tasks (root_id, id) WHERE root_id <> id;

DROP INDEX events_task;
CREATE INDEX events_task ON events (task_id, seq) WHERE task_id IS NOT NULL;
-- The events of a conversation; those of a task's private session are found by the task.
CREATE INDEX events_session ON events (session_key, seq) WHERE substr(session_key, 1, 3) <> 'bg:';
CREATE INDEX events_alert ON events (seq) WHERE kind = 'watchdog_alert';

-- The lists of the other records.
DROP INDEX sessions_recent;
CREATE INDEX sessions_recent ON sessions (updated_at DESC, key) WHERE substr(key, 1, 3) <> 'bg:';
CREATE INDEX deliveries_status ON deliveries (status, id);
CREATE INDEX approvals_status ON approvals (status, id);
CREATE INDEX automations_recent ON automations (created_at, id);
DROP INDEX automations_scope;
CREATE INDEX automations_scope ON automations (scope_kind, scope_id, created_at, id);
CREATE INDEX automations_session ON automations (session_key) WHERE status <> 'deleted';
CREATE INDEX automations_deleted ON automations (deleted_at) WHERE status = 'deleted';
CREATE INDEX goals_recent ON goals (created_at, id);
CREATE INDEX goals_session ON goals (session_key) WHERE status IN ('waiting_for_session', 'active', 'paused');
CREATE INDEX handoffs_task ON handoffs (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX worktrees_present ON worktrees (id) WHERE status <> 'removed';
CREATE INDEX worktrees_removed ON worktrees (updated_at) WHERE status = 'removed';
CREATE INDEX tokens_actor ON tokens (actor) WHERE kind <> 'api' AND revoked_at IS NULL;
CREATE INDEX tokens_revoked ON tokens (revoked_at) WHERE revoked_at IS NOT NULL;
CREATE INDEX tokens_expiry ON tokens (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX alerts_told ON alerts (told_at);
DROP INDEX steers_task;
CREATE INDEX steers_task ON steers (task_id, number);
