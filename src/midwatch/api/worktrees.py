"""Routes of worktrees: read, compare, merge, remove. The id of one of its tasks also identifies a worktree."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from midwatch.api.bodies import DiffQuery, MergeBody, RemoveBody, WorktreeQuery
from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json, list_page
from midwatch.domain.worktree import PRESENT, WorktreeFilter
from midwatch.wire.worktrees import WorktreeDiff, WorktreeInfo, WorktreeMerge, WorktreePage

router = make_router("worktrees")


@router.get("/worktrees", responses={200: {"model": WorktreePage}})
@needs("oversee")
async def list_worktrees(desk: DeskDep, actor: Caller, query: Annotated[WorktreeQuery, Query()]) -> Json:
    """List worktrees, newest first. `next` is the `before` of the following page, or null."""
    which = WorktreeFilter(statuses=tuple(query.status) or PRESENT, before=query.before, limit=query.limit)
    trees = await desk.worktrees.list(which, actor=actor)
    return list_page("worktrees", [tree.snapshot() for tree in trees], trees.next)


@router.get("/worktrees/{worktree_id}", responses={200: {"model": WorktreeInfo}})
@needs("read")
async def show(desk: DeskDep, actor: Caller, worktree_id: str) -> Json:
    """Return one worktree. The number of its changes is current only while no task runs in it."""
    return Json((await desk.worktrees.get(worktree_id, actor=actor)).snapshot())


@router.get("/worktrees/{worktree_id}/diff", responses={200: {"model": WorktreeDiff}})
@needs("oversee")
async def diff(desk: DeskDep, actor: Caller, worktree_id: str, query: Annotated[DiffQuery, Query()]) -> Json:
    """Return the diff of a worktree, with uncommitted changes and new files. Agents of running tasks get no diff."""
    changes = await desk.worktrees.diff(worktree_id, query.limit, actor=actor)
    code = [file._asdict() for file in changes.runs_code]
    return Json({"id": worktree_id, "diff": changes.text, "truncated": changes.truncated, "runs_code": code})


@router.post("/worktrees/{worktree_id}/merge", responses={200: {"model": WorktreeMerge}})
@needs("manage")
async def merge(desk: DeskDep, actor: Caller, worktree_id: str, body: MergeBody | None = None) -> Json:
    """Commit the uncommitted changes of a worktree, and merge its branch into the branch that it started from."""
    tree, merged = await desk.worktrees.merge(worktree_id, hooks=body is not None and body.hooks, actor=actor)
    code = [file._asdict() for file in merged.runs_code]
    result = {"commit": merged.commit, "into": tree.target, "how": merged.how, "runs_code": code}
    return Json({"worktree": tree.snapshot(), **result})


@router.post("/worktrees/{worktree_id}/remove", responses={200: {"model": WorktreeInfo}})
@needs("manage")
async def remove(desk: DeskDep, actor: Caller, worktree_id: str, body: RemoveBody) -> Json:
    """Remove the directory and the branch of a worktree. If work would be lost, `force` is required."""
    return Json((await desk.worktrees.remove(worktree_id, force=body.force, actor=actor)).snapshot())
