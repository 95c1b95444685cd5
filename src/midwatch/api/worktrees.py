"""Routes of worktrees: look, compare, merge, remove. An id is that of the worktree or of a task that works in it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from midwatch.api.bodies import DiffQuery, RemoveBody, WorktreeQuery
from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.api.tasks import check_may
from midwatch.base.errors import Forbidden, NotFound
from midwatch.desk.desk import Desk
from midwatch.domain.identity import Actor
from midwatch.domain.worktree import PRESENT, WorktreeFilter
from midwatch.wire.worktrees import WorktreeDiff, WorktreeInfo, WorktreeMerged, WorktreePage

router = APIRouter(prefix=PREFIX, tags=["worktrees"])


@router.get("/worktrees", responses={200: {"model": WorktreePage}})
async def list_worktrees(desk: DeskDep, asked: Annotated[WorktreeQuery, Query()]) -> Json:
    """Worktrees, newest first. `next` is the `before` of the following page, or null."""
    statuses = tuple(asked.status) or PRESENT
    found = await desk.worktrees.list(WorktreeFilter(statuses=statuses, before=asked.before, limit=asked.limit))
    following = found[-1].id if len(found) == asked.limit else None
    return Json({"worktrees": [tree.snapshot() for tree in found], "next": following})


@router.get("/worktrees/{worktree_id}", responses={200: {"model": WorktreeInfo}})
async def show(desk: DeskDep, worktree_id: str) -> Json:
    """One worktree, looked at afresh where nothing runs in it."""
    return Json((await desk.worktrees.get(worktree_id)).snapshot())


@router.get("/worktrees/{worktree_id}/diff", responses={200: {"model": WorktreeDiff}})
async def diff(desk: DeskDep, who: Who, worktree_id: str, asked: Annotated[DiffQuery, Query()]) -> Json:
    """What has changed in it, with what is not committed and new files. Not for agents that work."""
    if who.task is not None:
        raise Forbidden("an agent is not shown what others did; it has its own files.")
    found = await desk.worktrees.diff(worktree_id, asked.limit)
    return Json({"id": worktree_id, "diff": found.text, "truncated": found.truncated})


@router.post("/worktrees/{worktree_id}/merge", responses={200: {"model": WorktreeMerged}})
async def merge(desk: DeskDep, who: Who, worktree_id: str) -> Json:
    """Commit what is not committed in it, and bring its branch into the one it came from."""
    await may(desk, who, worktree_id)
    tree, merged = await desk.worktrees.merge(worktree_id, actor=who.name)
    said = {"commit": merged.commit, "into": tree.target, "how": merged.how}
    return Json({"worktree": tree.snapshot(), **said})


@router.post("/worktrees/{worktree_id}/remove", responses={200: {"model": WorktreeInfo}})
async def remove(desk: DeskDep, who: Who, worktree_id: str, body: RemoveBody) -> Json:
    """Remove its directory and branch; refused, with what would be lost, unless that is nothing or forced."""
    await may(desk, who, worktree_id)
    return Json((await desk.worktrees.remove(worktree_id, force=body.force, actor=who.name)).snapshot())


async def may(desk: Desk, who: Actor, worktree_id: str) -> None:
    """Forbidden when its task is somebody else's to manage."""
    tree = await desk.worktrees.find(worktree_id)
    try:
        await check_may(desk, who, tree.task_id)
    except NotFound:
        who.must_manage(tree.creator, desk.settings.manage_tasks)
