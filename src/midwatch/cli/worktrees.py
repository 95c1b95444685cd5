"""Commands of worktrees: worktrees, and worktree show, diff, merge, remove."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from midwatch.cli.connection import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import age, changes, clean, emit, fields, local, note, say, table

if TYPE_CHECKING:
    from midwatch.wire.worktrees import WorktreeInfo

MOST_SHOWN = 10_000_000

WorktreeId = Annotated[str, typer.Argument(metavar="ID", help="Id of the worktree, or of a task that works in it.")]
WorktreeStatus = Literal["making", "kept", "merged", "removed"]

app = typer.Typer(
    help="See what was done in a worktree, and merge or remove it: show, diff, merge, remove.",
    invoke_without_command=True,
)


@app.callback()
def start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


def worktrees(
    status: Annotated[
        WorktreeStatus | None, typer.Option("--status", "-s", help="Default: those that are there.")
    ] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Only those made before it.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List worktrees, newest first."""

    async def act() -> None:
        async with connect() as desk:
            page = await desk.client.worktrees(status=(status,) if status else (), before=before, limit=limit)
        if as_json:
            emit(page)
            return
        if not page["worktrees"]:
            say("No worktrees. Have a task work in one with `midwatch submit --worktree PROMPT`.")
            return
        rows = [
            (
                one["id"],
                one["status"],
                one["branch"],
                one["target"] or "-",
                changes(one["files"], one["added"], one["removed"]),
                age(one["updated_at"]),
                one["repository"],
            )
            for one in page["worktrees"]
        ]
        table(("ID", "STATUS", "BRANCH", "FROM", "CHANGES", "AGE", "REPOSITORY"), rows)
        if page["next"]:
            say(f"More: midwatch worktrees --before {page['next']}")

    run(act())


@app.command()
def show(worktree_id: WorktreeId, as_json: AsJson = False) -> None:
    """Show everything about a worktree."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.worktree(worktree_id)
        if as_json:
            emit(found)
        else:
            fields(described(found))

    run(act())


def described(tree: WorktreeInfo) -> list[tuple[str, object]]:
    """A worktree as names and values for people."""
    return [
        ("id", tree["id"]),
        ("status", tree["status"]),
        ("branch", tree["branch"]),
        ("path", tree["path"]),
        ("repository", tree["repository"]),
        ("merged into", tree["target"] or "no branch; merge it by hand"),
        ("base", tree["base"]),
        ("changes", changes(tree["files"], tree["added"], tree["removed"])),
        ("uncommitted", "yes" if tree["dirty"] else None),
        ("note", tree["note"]),
        ("task", tree["task_id"]),
        ("session", tree["session_key"]),
        ("host", tree["host"]),
        ("made", local(tree["created_at"])),
        ("used", local(tree["updated_at"])),
    ]


@app.command()
def diff(
    worktree_id: WorktreeId,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_SHOWN, help="Bytes at most.")] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Print what has changed in a worktree, with what is not committed and new files."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.worktree_diff(worktree_id, limit)
        if as_json:
            emit(found)
            return
        sys.stdout.write(clean(found["diff"]) if sys.stdout.isatty() else found["diff"])
        if found["truncated"]:
            note(f"\nThere is more; see it with --limit {min(10 * limit, MOST_SHOWN)}.")

    run(act())


@app.command()
def merge(worktree_id: WorktreeId, as_json: AsJson = False) -> None:
    """Commit what is not committed in a worktree, and bring its branch into the one it came from."""

    async def act() -> None:
        async with connect() as desk:
            merged = await desk.client.merge_worktree(worktree_id)
        if as_json:
            emit(merged)
            return
        branch, into = merged["worktree"]["branch"], merged["into"]
        if merged["how"] == "nothing":
            say(f"{into} has everything of {branch} already")
        else:
            say(f"{branch} is merged into {into} ({merged['how']}), which is now {merged['commit'][:12]}")
        say(f"Then: midwatch worktree remove {merged['worktree']['id']}")

    run(act())


@app.command()
def remove(
    worktree_id: WorktreeId,
    force: Annotated[bool, typer.Option("--force", help="Also when work in it would be lost.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a worktree's directory and branch."""

    async def act() -> None:
        async with connect() as desk:
            gone = await desk.client.remove_worktree(worktree_id, force=force)
        if as_json:
            emit(gone)
        else:
            say(f"{gone['id']} is removed: {gone['path']} and {gone['branch']}")

    run(act())
