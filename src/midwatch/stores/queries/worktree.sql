-- get: one worktree
SELECT {worktree} FROM worktrees WHERE id = :id

-- list: newest first
SELECT {worktree} FROM worktrees
WHERE status IN {list:statuses} AND (CAST(:before AS TEXT) IS NULL OR id < :before)
ORDER BY id DESC LIMIT :limit

-- prune: worktrees that were removed long ago
DELETE FROM worktrees WHERE status = 'removed' AND updated_at < :before
