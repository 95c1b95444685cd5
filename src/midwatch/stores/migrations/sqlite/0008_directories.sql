-- The repository's directory and the worktree's directory in it; both empty in older records.
ALTER TABLE worktrees ADD COLUMN git_dir TEXT NOT NULL DEFAULT '';
ALTER TABLE worktrees ADD COLUMN admin_dir TEXT NOT NULL DEFAULT '';
