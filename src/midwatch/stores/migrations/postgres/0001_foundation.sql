CREATE TABLE midwatch_schema (version BIGINT NOT NULL);

-- The same tables as on SQLite.
-- Times are microseconds since the epoch, UTC. JSON is text.

CREATE TABLE tasks (
  id TEXT PRIMARY KEY,
  status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'done', 'failed', 'cancelled')),
  prompt TEXT NOT NULL,
  agent TEXT NOT NULL,
  session_key TEXT NOT NULL,
  gate_key TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  due_at BIGINT NOT NULL,
  cause TEXT NOT NULL,
  cause_id TEXT,
  priority BIGINT NOT NULL,
  rank BIGINT NOT NULL,
  creator TEXT,
  origin_channel TEXT,
  origin_session TEXT,
  route TEXT,
  workdir TEXT,
  dir_key TEXT,
  quiet TEXT,
  timeout_seconds DOUBLE PRECISION,
  on_crash TEXT NOT NULL CHECK (on_crash IN ('resume', 'rerun', 'fail')),
  max_attempts BIGINT NOT NULL,
  attempt BIGINT NOT NULL,
  failures BIGINT NOT NULL,
  rescues BIGINT NOT NULL,
  interruptions BIGINT NOT NULL,
  stop_requested TEXT,
  wait TEXT,
  lease_owner TEXT,
  host TEXT,
  pgid BIGINT,
  pgid_mark TEXT,
  token_hash TEXT,
  submitter TEXT,
  started_at BIGINT,
  completed_at BIGINT,
  outcome TEXT,
  result TEXT,
  error TEXT,
  root_id TEXT,
  parent_id TEXT,
  retry_of TEXT,
  idempotency_key TEXT,
  body_hash TEXT,
  internal_key TEXT,
  progress TEXT,
  budget TEXT,
  usage TEXT,
  trace TEXT,
  worktree TEXT
);
-- The order in which tasks are taken.
CREATE INDEX tasks_claim ON tasks (rank, due_at, id) WHERE status = 'pending';
-- The actors who wait, and the first task of each for an agent.
CREATE INDEX tasks_actor ON tasks (coalesce(creator, ''), agent, rank, due_at, id) WHERE status = 'pending';
-- The next task whose time has not come.
CREATE INDEX tasks_later ON tasks (due_at) WHERE status = 'pending' AND wait IS NOT NULL;
-- The lock: one running task per gate.
CREATE UNIQUE INDEX tasks_gate ON tasks (gate_key) WHERE status = 'running';
-- One running task in a directory that it wants for itself.
CREATE UNIQUE INDEX tasks_directory ON tasks (dir_key) WHERE status = 'running' AND dir_key IS NOT NULL;
-- What waits for it.
CREATE INDEX tasks_waiting_directory ON tasks (dir_key) WHERE status = 'pending' AND dir_key IS NOT NULL;
-- What waits in a gate, looked for when its running task ends.
CREATE INDEX tasks_waiting ON tasks (gate_key) WHERE status = 'pending';
-- Counts of ended tasks by status, and the oldest of them. Open ones are counted by the indexes above.
CREATE INDEX tasks_ended ON tasks (status, completed_at) WHERE completed_at IS NOT NULL;
-- What ended tasks have cost.
CREATE INDEX tasks_spent ON tasks (completed_at) WHERE completed_at IS NOT NULL;
CREATE UNIQUE INDEX tasks_key ON tasks (coalesce(creator, ''), idempotency_key) WHERE idempotency_key IS NOT NULL;
-- Tasks that came from another one.
CREATE INDEX tasks_kin ON tasks (root_id) WHERE root_id <> id;
-- What waits in a conversation; a task's private session is none.
CREATE INDEX tasks_queue ON tasks (session_key) WHERE status = 'pending' AND substr(session_key, 1, 3) <> 'bg:';
CREATE UNIQUE INDEX tasks_internal_key ON tasks (internal_key) WHERE internal_key IS NOT NULL;

CREATE TABLE events (
  seq BIGINT PRIMARY KEY,
  id TEXT NOT NULL,
  kind TEXT NOT NULL,
  time BIGINT NOT NULL,
  version BIGINT NOT NULL,
  agent_id TEXT,
  turn_id TEXT,
  parent_turn_id TEXT,
  session_key TEXT,
  task_id TEXT,
  attempt BIGINT,
  actor TEXT,
  iteration BIGINT,
  trace_id TEXT,
  span_id TEXT,
  trace_path TEXT,
  source TEXT,
  payload TEXT NOT NULL
);
CREATE INDEX events_task ON events (task_id) WHERE task_id IS NOT NULL;
-- Recent troubles of a conversation.
CREATE INDEX events_fault ON events (session_key, seq) WHERE kind = 'agent_error';

-- One row: the last seq given, and the first from which the log has no holes.
CREATE TABLE event_head (one BIGINT PRIMARY KEY CHECK (one = 1), last_seq BIGINT NOT NULL, oldest_seq BIGINT NOT NULL);
INSERT INTO event_head VALUES (1, 0, 1);

CREATE TABLE sessions (
  key TEXT PRIMARY KEY,
  agent TEXT NOT NULL,
  gate_key TEXT NOT NULL,
  title TEXT NOT NULL,
  creator TEXT,
  status TEXT NOT NULL CHECK (status IN ('idle', 'closed')),
  thread_id TEXT,
  workdir TEXT,
  worktree TEXT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  revision BIGINT NOT NULL,
  live_owner TEXT,
  epoch BIGINT NOT NULL
);
-- Conversations that are open in a process.
CREATE INDEX sessions_live ON sessions (live_owner) WHERE live_owner IS NOT NULL;
CREATE INDEX sessions_recent ON sessions (updated_at);

CREATE TABLE messages (
  session_key TEXT NOT NULL,
  number BIGINT NOT NULL,
  role TEXT NOT NULL,
  text TEXT NOT NULL,
  time BIGINT NOT NULL,
  task_id TEXT,
  id TEXT NOT NULL,
  author TEXT,
  PRIMARY KEY (session_key, number)
);
-- A message that is told again, as a task's prompt is when the task is tried again, stays one message.
CREATE UNIQUE INDEX messages_id ON messages (session_key, id) WHERE id <> '';

CREATE TABLE deliveries (
  id TEXT PRIMARY KEY,
  task_id TEXT NOT NULL,
  channel TEXT NOT NULL,
  notice TEXT NOT NULL,
  text TEXT NOT NULL,
  target TEXT,
  status TEXT NOT NULL CHECK (status IN ('pending', 'sent', 'failed')),
  attempts BIGINT NOT NULL,
  due_at BIGINT NOT NULL,
  created_at BIGINT NOT NULL,
  sent_at BIGINT,
  error TEXT,
  UNIQUE (task_id, channel, notice)
);
CREATE INDEX deliveries_due ON deliveries (due_at) WHERE status = 'pending';

CREATE TABLE approvals (
  id TEXT PRIMARY KEY,
  task_id TEXT NOT NULL,
  attempt BIGINT NOT NULL,
  session_key TEXT NOT NULL,
  agent TEXT NOT NULL,
  creator TEXT,
  question TEXT NOT NULL,
  kind TEXT NOT NULL,
  tool TEXT,
  command TEXT,
  paths TEXT NOT NULL,
  diff TEXT,
  diff_bytes BIGINT,
  risk TEXT,
  choices TEXT NOT NULL,
  always TEXT,
  status TEXT NOT NULL CHECK (status IN ('pending', 'granted', 'denied', 'expired')),
  answer TEXT,
  why TEXT,
  answered_by TEXT,
  rule TEXT,
  created_at BIGINT NOT NULL,
  expires_at BIGINT NOT NULL,
  resolved_at BIGINT
);
CREATE INDEX approvals_open ON approvals (expires_at) WHERE status = 'pending';
CREATE INDEX approvals_task ON approvals (task_id);

CREATE TABLE rules (
  id TEXT PRIMARY KEY,
  agent TEXT NOT NULL,
  effect TEXT NOT NULL CHECK (effect IN ('allow', 'deny')),
  kind TEXT,
  command TEXT,
  path TEXT,
  root TEXT,
  approval_id TEXT,
  created_at BIGINT NOT NULL,
  created_by TEXT,
  revoked_at BIGINT,
  revoked_by TEXT
);
CREATE INDEX rules_agent ON rules (agent) WHERE revoked_at IS NULL;

CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  kind TEXT NOT NULL CHECK (kind IN ('api', 'browser', 'link')),
  name TEXT NOT NULL,
  actor TEXT NOT NULL,
  role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'owner')),
  hash TEXT NOT NULL UNIQUE,
  created_at BIGINT NOT NULL,
  created_by TEXT NOT NULL,
  expires_at BIGINT,
  last_used_at BIGINT,
  revoked_at BIGINT,
  root TEXT
);
CREATE UNIQUE INDEX tokens_name ON tokens (name) WHERE kind = 'api' AND revoked_at IS NULL;

CREATE TABLE instances (
  id TEXT PRIMARY KEY,
  role TEXT NOT NULL,
  host TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  pid BIGINT NOT NULL,
  agents TEXT NOT NULL,
  terms TEXT NOT NULL,
  slots BIGINT NOT NULL,
  started_at BIGINT NOT NULL,
  -- Written every two seconds while the process lives, by this database's clock.
  heartbeat TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- One row: the process that runs the loops, as long as it renews it.
CREATE TABLE leader (one BIGINT PRIMARY KEY CHECK (one = 1), instance TEXT, renewed TIMESTAMPTZ NOT NULL);
INSERT INTO leader VALUES (1, NULL, clock_timestamp());

CREATE TABLE automations (
  id TEXT PRIMARY KEY,
  prompt TEXT NOT NULL,
  agent TEXT NOT NULL,
  schedule TEXT NOT NULL,
  title TEXT NOT NULL,
  fresh BIGINT NOT NULL,
  worktree BIGINT NOT NULL,
  scope_kind TEXT NOT NULL CHECK (scope_kind IN ('user', 'chat')),
  scope_id TEXT NOT NULL,
  route TEXT,
  creator TEXT,
  manage_mode TEXT NOT NULL CHECK (manage_mode IN ('creator_only', 'scope_all')),
  session_key TEXT NOT NULL,
  resume_thread_id TEXT,
  source_message_id TEXT,
  status TEXT NOT NULL CHECK (status IN ('active', 'paused', 'deleted')),
  paused_why TEXT,
  max_runs BIGINT NOT NULL,
  run_count BIGINT NOT NULL,
  workdir TEXT,
  timeout_seconds DOUBLE PRECISION,
  on_crash TEXT,
  jitter_seconds DOUBLE PRECISION NOT NULL,
  missed TEXT NOT NULL,
  missed_window DOUBLE PRECISION NOT NULL,
  quiet TEXT,
  budget TEXT,
  approvals TEXT,
  tags TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  next_run_at BIGINT,
  last_run_at BIGINT,
  deleted_at BIGINT,
  last_result TEXT,
  consecutive_failures BIGINT NOT NULL,
  revision BIGINT NOT NULL
);
-- The next one to fire.
CREATE INDEX automations_due ON automations (next_run_at, id) WHERE status = 'active' AND next_run_at IS NOT NULL;
CREATE INDEX automations_scope ON automations (scope_kind, scope_id, id);

CREATE TABLE goals (
  id TEXT PRIMARY KEY,
  objective TEXT NOT NULL,
  agent TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('waiting_for_session', 'active', 'paused', 'complete', 'timeout')),
  deadline_at BIGINT NOT NULL,
  next_run_at BIGINT,
  delay_reason TEXT,
  thread_id TEXT,
  scope_kind TEXT NOT NULL CHECK (scope_kind IN ('user', 'chat')),
  scope_id TEXT NOT NULL,
  route TEXT,
  creator TEXT,
  manage_mode TEXT NOT NULL CHECK (manage_mode IN ('creator_only', 'scope_all')),
  session_key TEXT NOT NULL,
  workdir TEXT,
  verifier TEXT,
  step BIGINT NOT NULL,
  work TEXT NOT NULL,
  task_id TEXT,
  proposal TEXT,
  evidence TEXT,
  missing TEXT,
  errors BIGINT NOT NULL,
  alike BIGINT NOT NULL,
  last_mark TEXT,
  max_steps BIGINT NOT NULL,
  max_tokens BIGINT NOT NULL,
  max_seconds DOUBLE PRECISION NOT NULL,
  tokens BIGINT NOT NULL,
  seconds DOUBLE PRECISION NOT NULL,
  paused_why TEXT,
  summary TEXT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  completed_at BIGINT,
  revision BIGINT NOT NULL
);
-- One open goal per scope.
CREATE UNIQUE INDEX goals_open ON goals (scope_kind, scope_id) WHERE status IN ('waiting_for_session', 'active', 'paused');
CREATE INDEX goals_deadline ON goals (deadline_at) WHERE status IN ('waiting_for_session', 'active', 'paused');

-- The tasks of automations and goals, in order.
CREATE INDEX tasks_cause ON tasks (cause_id, id) WHERE cause_id IS NOT NULL;
-- An automation and a goal have one open task at most.
CREATE UNIQUE INDEX tasks_cause_open ON tasks (cause_id)
WHERE cause IN ('automation', 'goal') AND status IN ('pending', 'running');

-- When somebody was last told of what; the id is the subject and the kind of alert.
CREATE TABLE alerts (id TEXT PRIMARY KEY, told_at BIGINT NOT NULL);

-- How far somebody has followed the log.
CREATE TABLE cursors (name TEXT PRIMARY KEY, seq BIGINT NOT NULL);

-- A directory and a branch of its own for a task or a conversation.
CREATE TABLE worktrees (
  id TEXT PRIMARY KEY,
  status TEXT NOT NULL CHECK (status IN ('making', 'kept', 'merged', 'removed')),
  host TEXT NOT NULL,
  repository TEXT NOT NULL,
  path TEXT NOT NULL,
  branch TEXT NOT NULL,
  base TEXT NOT NULL,
  target TEXT,
  subdir TEXT NOT NULL,
  task_id TEXT NOT NULL,
  session_key TEXT,
  creator TEXT,
  files BIGINT,
  added BIGINT,
  removed BIGINT,
  dirty BIGINT,
  note TEXT,
  created_at BIGINT NOT NULL,
  updated_at BIGINT NOT NULL,
  revision BIGINT NOT NULL
);
