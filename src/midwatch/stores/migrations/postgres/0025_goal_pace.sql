-- Goals with names, several open goals of a scope, and what decides when a step starts and the progress is sent.

ALTER TABLE goals ADD COLUMN name TEXT;
ALTER TABLE goals ADD COLUMN judge TEXT;
ALTER TABLE goals ADD COLUMN every_seconds DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE goals ADD COLUMN pace DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE goals ADD COLUMN starts TEXT NOT NULL DEFAULT '[]';
ALTER TABLE goals ADD COLUMN repeats BIGINT NOT NULL DEFAULT 0;
ALTER TABLE goals ADD COLUMN progress_every DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE goals ADD COLUMN progress_at BIGINT;

DROP INDEX goals_open;
-- A goal in a conversation belongs to the chat, not to a user with the name of the conversation.
UPDATE goals SET scope_kind = 'chat' WHERE scope_kind = 'user' AND scope_id = session_key;

CREATE INDEX goals_open ON goals (id) WHERE status IN ('waiting_for_session', 'active', 'paused');
CREATE INDEX goals_scope ON goals (scope_kind, scope_id, created_at, id);
-- A name belongs to one open goal of a scope.
CREATE UNIQUE INDEX goals_named ON goals (name, scope_kind, scope_id)
  WHERE name IS NOT NULL AND status IN ('waiting_for_session', 'active', 'paused');
CREATE INDEX goals_name ON goals (name, id) WHERE name IS NOT NULL;
