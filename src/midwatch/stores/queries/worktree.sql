-- get: one worktree
SELECT {worktree} FROM worktrees WHERE id = :id

-- prune: worktrees that were removed long ago
DELETE FROM worktrees WHERE status = 'removed' AND updated_at < :before
