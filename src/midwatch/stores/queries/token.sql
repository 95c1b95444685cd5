-- by_hash: one token, unless the token with which it was created has ended
SELECT {token} FROM tokens
WHERE hash = :hash AND (root IS NULL OR EXISTS (
  SELECT 1 FROM tokens made_with WHERE made_with.id = tokens.root AND made_with.revoked_at IS NULL
    AND (made_with.expires_at IS NULL OR made_with.expires_at > :now)
))

-- get: the token with this id, else the live token of the program with this name
SELECT {token} FROM tokens WHERE id = :key OR (name = :key AND kind = 'api' AND revoked_at IS NULL)
ORDER BY CASE WHEN id = :key THEN 0 ELSE 1 END LIMIT 1

-- list: tokens of programs and browsers, newest first
SELECT {token} FROM tokens WHERE kind <> 'link' ORDER BY id DESC LIMIT :limit

-- count: valid links and browsers of an actor
SELECT count(*) FROM tokens WHERE actor = :actor AND kind <> 'api' AND revoked_at IS NULL AND expires_at > :now

-- prune: tokens that ended before a time
DELETE FROM tokens WHERE revoked_at < :before OR expires_at < :before
