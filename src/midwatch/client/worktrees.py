"""Calls about worktrees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from midwatch.client.transport import Transport, path_of

if TYPE_CHECKING:
    from midwatch.wire.worktrees import WorktreeDiff, WorktreeInfo, WorktreeMerge, WorktreePage


class WorktreeCalls(Transport):
    """The client's calls about worktrees.

    `worktree_id` is the id of a worktree, or the id of a task that works in the worktree.
    """

    async def worktrees(
        self, *, status: Iterable[str] = (), before: str | None = None, limit: int = 50
    ) -> WorktreePage:
        """Return a page of worktrees, newest first. Without a status, removed worktrees are left out."""
        return await self._get("/worktrees", status=list(status), before=before, limit=limit)

    async def worktree(self, worktree_id: str) -> WorktreeInfo:
        """Return one worktree."""
        return await self._get(path_of("worktree", worktree_id))

    async def worktree_diff(self, worktree_id: str, limit: int = 1_000_000) -> WorktreeDiff:
        """Return the changes in a worktree, up to `limit` bytes."""
        return await self._get(path_of("worktree", worktree_id, "diff"), limit=limit)

    async def merge_worktree(self, worktree_id: str, *, hooks: bool = False) -> WorktreeMerge:
        """Merge the branch of a worktree into the branch that the worktree was made from.

        Only with `hooks` the hooks of the repository run at the merge; they run outside of every sandbox.
        """
        return await self._post(path_of("worktree", worktree_id, "merge"), hooks=hooks)

    async def remove_worktree(self, worktree_id: str, *, force: bool = False) -> WorktreeInfo:
        """Remove the directory and the branch of a worktree. `force` also discards work that is not merged."""
        return await self._post(path_of("worktree", worktree_id, "remove"), force=force)
