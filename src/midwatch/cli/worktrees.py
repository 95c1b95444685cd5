"""Commands of worktrees: worktrees, and worktree show, diff, merge, remove."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from midwatch.cli import output as out
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.options import Limit
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from midwatch.wire.worktrees import WorktreeCodeFile, WorktreeDiff, WorktreeInfo

MAX_DIFF = 10_000_000
HEADERS = ("ID", "STATUS", "BRANCH", "FROM", "CHANGES", "AGE", "REPOSITORY")

WorktreeId = Annotated[str, Argument(metavar="ID", help="Id of the worktree, or of a task in it.")]
WorktreeStatus = Literal["making", "kept", "merged", "removed"]

app = Group("Show, merge or remove a worktree and its changes.")


@command()
async def worktrees(
    desk: Desk,
    status: Annotated[
        WorktreeStatus | None, Option("--status", "-s", help="Status to list. Default: those that still exist.")
    ] = None,
    before: Annotated[str | None, Option("--before", metavar="ID", help="Only created before this worktree.")] = None,
    limit: Limit = 20,
) -> Reply:
    """List worktrees, newest first."""
    page = await desk.client.worktrees(status=(status,) if status else (), before=before, limit=limit)
    rows = [
        (
            *out.values(tree, "id", "status", "branch", "target"),
            out.format_changes(tree["files"], tree["added"], tree["removed"]),
            out.format_age(tree["updated_at"]),
            tree["repository"],
        )
        for tree in page["worktrees"]
    ]
    empty = "No worktrees. Create one with `midwatch submit --worktree PROMPT`."
    more = f"More: midwatch worktrees --before {page['next']}" if page["next"] else None
    return Reply(page, out.join(out.table(HEADERS, rows, empty), more))


@command(app)
async def show(desk: Desk, worktree_id: WorktreeId) -> Reply:
    """Show all details of a worktree."""
    tree = await desk.client.worktree(worktree_id)
    return Reply(tree, out.fields(describe_tree(tree)))


def describe_tree(tree: WorktreeInfo) -> list[out.Field]:
    """Return the details of a worktree as names and values, for people."""
    return [
        *out.pick(tree, "id", "status", "branch", "path", "repository"),
        ("merges into", tree["target"] or "no branch; merge the worktree by hand"),
        ("base", tree["base"]),
        ("changes", out.format_changes(tree["files"], tree["added"], tree["removed"])),
        ("uncommitted", "yes" if tree["dirty"] else None),
        *out.pick(tree, note="note", task="task_id", session="session_key", host="host"),
        *out.pick(tree, made="created_at", used="updated_at"),
    ]


@command(app)
async def diff(
    desk: Desk,
    worktree_id: WorktreeId,
    limit: Annotated[int, Option("--limit", min=1, max=MAX_DIFF, help="Maximum size in bytes.")] = 1_000_000,
) -> Reply:
    """Print the diff of a worktree, with uncommitted changes and new files."""
    changes = await desk.client.worktree_diff(worktree_id, limit)
    return Reply(changes, lambda: print_diff(changes, limit))


def print_diff(changes: WorktreeDiff, limit: int) -> None:
    """Print a diff unchanged, so that git can apply it."""
    sys.stdout.write(out.clean_for_terminal(changes["diff"]))
    if code := describe_code(changes["runs_code"]):
        out.note(f"\n{code}")
    if changes["truncated"]:
        out.note(f"\nThe diff is longer; print more of it with --limit {min(10 * limit, MAX_DIFF)}.")


def describe_code(files: list[WorktreeCodeFile]) -> str | None:
    """Return lines that name the changed files that run code, or None."""
    lines = [f"  {out.clean_for_terminal(file['path'])}: {file['why']}" for file in files]
    return "\n".join(("These changed files run code when they are used; read them:", *lines)) if lines else None


@command(app)
async def merge(
    desk: Desk,
    worktree_id: WorktreeId,
    hooks: Annotated[
        bool, Option("--hooks", help="Run the git hooks of the repository at the merge, outside of every sandbox.")
    ] = False,
) -> Reply:
    """Commit the uncommitted changes of a worktree, and merge its branch into the branch that it started from."""
    merged = await desk.client.merge_worktree(worktree_id, hooks=hooks)
    branch, into = merged["worktree"]["branch"], merged["into"]
    if merged["how"] == "nothing":
        text = f"nothing to merge: {into} has all changes of {branch}"
    else:
        text = f"{branch} is merged into {into} ({merged['how']}), which is now {merged['commit'][:12]}"
    code = describe_code(merged["runs_code"])
    return Reply(merged, out.join(text, code, f"Then: midwatch worktree remove {merged['worktree']['id']}"))


@command(app)
async def remove(
    desk: Desk,
    worktree_id: WorktreeId,
    force: Annotated[bool, Option("--force", help="Remove the worktree even if work would be lost.")] = False,
) -> Reply:
    """Remove the directory and the branch of a worktree."""
    tree = await desk.client.remove_worktree(worktree_id, force=force)
    return Reply(tree, f"{tree['id']} is removed: {tree['path']} and {tree['branch']}")
