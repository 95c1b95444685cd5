"""Calls about worktrees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from midwatch.client.transport import Transport, named

if TYPE_CHECKING:
    from midwatch.wire.worktrees import WorktreeDiff, WorktreeInfo, WorktreeMerged, WorktreePage


class WorktreeCalls(Transport):
    """Worktrees. An id is that of the worktree or of a task that works in it."""

    async def worktrees(
        self, *, status: Iterable[str] = (), before: str | None = None, limit: int = 50
    ) -> WorktreePage:
        """Worktrees, newest first; without a status those that are there."""
        asked = {"status": list(status), "before": before, "limit": limit}
        return cast("WorktreePage", await self._get("/worktrees", asked))

    async def worktree(self, worktree_id: str) -> WorktreeInfo:
        """One worktree."""
        return cast("WorktreeInfo", await self._get(f"/worktrees/{named('worktree', worktree_id)}"))

    async def worktree_diff(self, worktree_id: str, limit: int = 1_000_000) -> WorktreeDiff:
        """What has changed in it, up to so many bytes."""
        found = await self._get(f"/worktrees/{named('worktree', worktree_id)}/diff", {"limit": limit})
        return cast("WorktreeDiff", found)

    async def merge_worktree(self, worktree_id: str) -> WorktreeMerged:
        """Bring its branch into the one it came from."""
        return cast("WorktreeMerged", await self._post(f"/worktrees/{named('worktree', worktree_id)}/merge"))

    async def remove_worktree(self, worktree_id: str, *, force: bool = False) -> WorktreeInfo:
        """Remove its directory and branch; with `force` also what would be lost."""
        said = {"force": force}
        return cast("WorktreeInfo", await self._post(f"/worktrees/{named('worktree', worktree_id)}/remove", said))
