"""Commands of tasks: submit, tasks, show, result, cancel, retry."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

from midwatch.base.errors import InvalidInput
from midwatch.cli.connection import Desk, connect, run
from midwatch.cli.options import (
    AgentName,
    AsJson,
    BudgetText,
    Delay,
    Key,
    OnCrash,
    OriginChannel,
    OriginSession,
    Priority,
    Prompt,
    Route,
    SessionKey,
    ShareWorkdir,
    TaskId,
    Timeout,
    Workdir,
    Worktree,
)
from midwatch.cli.output import (
    age,
    changes,
    clean,
    emit,
    fields,
    line,
    local,
    money,
    next_steps,
    note,
    say,
    span,
    table,
)

if TYPE_CHECKING:
    from midwatch.domain.requests import Submission
    from midwatch.wire.tasks import TaskInfo
    from midwatch.wire.worktrees import WorktreeNote

SHOW_PROMPT = 50


def submit(
    prompt: Prompt,
    agent: AgentName = None,
    workdir: Workdir = ".",
    worktree: Worktree = False,
    share_workdir: ShareWorkdir = False,
    timeout: Timeout = None,
    budget: BudgetText = None,
    priority: Priority = 0,
    delay: Delay = None,
    key: Key = None,
    route: Route = None,
    session: SessionKey = None,
    origin_channel: OriginChannel = None,
    origin_session: OriginSession = None,
    on_crash: OnCrash = None,
    as_json: AsJson = False,
) -> None:
    """Hand in a task and return at once."""
    wish = wishes(
        agent=agent, workdir=workdir, worktree=worktree or None, share_workdir=share_workdir or None,
        timeout=timeout, budget=limits(budget), priority=priority, delay=delay, idempotency_key=key,
        route=route, session_key=session, origin_channel=origin_channel, origin_session=origin_session,
        on_crash=on_crash,
    )  # fmt: skip

    text = prompt_text(prompt)

    async def act() -> None:
        async with connect() as desk:
            task = await desk.client.submit(text, wish)
            told(task, as_json, f"{task['id']} submitted to {task['agent']}")
            if task["status"] == "pending" and not await desk.served():
                note("No server runs, so nothing runs this task yet; start one with `midwatch up`.")

    run(act())


def wishes(**said: object) -> Submission:
    """What was asked for beside the prompt, with durations in seconds and an absolute working directory."""
    import os.path

    from midwatch.base.durations import seconds

    for name in ("timeout", "delay"):
        if said[name] is not None:
            said[name] = seconds(str(said[name]))
    said["workdir"] = os.path.abspath(os.path.expanduser(str(said["workdir"])))  # noqa: PTH100,PTH111 - symlinks stay
    return cast("Submission", {name: value for name, value in said.items() if value is not None})


def limits(budget: str | None) -> dict[str, object] | None:
    """A budget as the interface takes it."""
    from midwatch.domain.budget import Budget

    return None if budget is None else Budget.parse(budget).data()


def prompt_text(prompt: str) -> str:
    """The prompt itself, from standard input for `-`; bytes that are not text are replaced."""
    said = sys.stdin.buffer.read().decode("utf-8", "replace") if prompt == "-" else prompt
    return said.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def told(task: TaskInfo, as_json: bool, text: str) -> None:
    """Say what became of a task."""
    if as_json:
        emit(task)
    else:
        say(text)


def tasks(
    status: Annotated[list[str] | None, typer.Option("--status", "-s", help="Only these; may be repeated.")] = None,
    agent: AgentName = None,
    session: Annotated[str | None, typer.Option("--session", help="Only of this conversation.")] = None,
    creator: Annotated[str | None, typer.Option("--creator", help="Only those this actor handed in.")] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="ID", help="Only those handed in before it.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first."""
    if before is not None and not re.fullmatch(r"t_[0-9a-f]+", before):
        raise InvalidInput(
            f"--before is the id of a task, such as the one a page ends with; got {before!r}.", field="before"
        )

    async def act() -> None:
        async with connect() as desk:
            page = await desk.client.list(
                status=status or (), agent=agent, session_key=session, creator=creator, before=before, limit=limit
            )
        if as_json:
            emit(page)
            return
        if not page["tasks"]:
            say("No tasks. Hand one in with `midwatch submit PROMPT`.")
            return
        rows = [
            (task["id"], task["status"], task["agent"], age(task["created_at"]), line(task["prompt"], SHOW_PROMPT))
            for task in page["tasks"]
        ]
        table(("ID", "STATUS", "AGENT", "AGE", "PROMPT"), rows)
        if page["next"]:
            say(f"More: midwatch tasks --before {page['next']}")

    run(act())


def show(task_id: TaskId, as_json: AsJson = False) -> None:
    """Show everything about a task."""

    async def act() -> None:
        async with connect() as desk:
            task = await desk.client.get(task_id)
            told_by = await hints(desk, task)
        if as_json:
            emit(task)
            return
        fields(described(task))
        for hint in told_by:
            say(hint)

    run(act())


def described(task: TaskInfo) -> list[tuple[str, object]]:
    """A task as names and values for people."""
    tokens = task["tokens_used"]
    return [
        ("id", task["id"]),
        ("status", task["status_text"]),
        ("outcome", task["outcome"]),
        ("agent", task["agent"]),
        ("prompt", task["prompt"]),
        ("result", task["result"]),
        ("error", task["error"]),
        ("session", task["session_key"]),
        ("origin", " ".join(filter(None, (task["origin_channel"], task["origin_session"])))),
        ("route", task["route"]),
        ("workdir", task["workdir"]),
        ("worktree", worktree_line(task["worktree"])),
        ("attempt", task["attempt"]),
        ("timeout", span(task["timeout_seconds"])),
        ("on crash", task["on_crash"]),
        ("retry of", task["retry_of"]),
        ("handoff", task["cause_id"] if task["cause"] == "handoff" else None),
        ("went on as", task["transferred_to"]),
        ("created", local(task["created_at"])),
        ("started", local(task["started_at"])),
        ("completed", local(task["completed_at"])),
        ("tokens", "unknown" if tokens is None and task["started_at"] else tokens),
        ("cost", money(cost) if (cost := (task["usage"] or {}).get("cost_usd")) is not None else None),
        ("budget", budget_line(task)),
    ]


def budget_line(task: TaskInfo) -> str | None:
    """What a task may spend, and has spent of it as far as its record tells."""
    from midwatch.domain.budget import NAMES, Budget, shown, spent_of

    spent, most = spent_of(task["budget"], task["usage"]), Budget.kept(task["budget"])._asdict()
    parts = [f"{shown(name, getattr(spent, name))} of {shown(name, most[name])}" for name in NAMES if most[name]]
    return ", ".join(parts) or None


def worktree_line(note: WorktreeNote | None) -> str | None:
    """A task's worktree for people: its branch and what was changed."""
    if note is None:
        return None
    if note["branch"] is None:
        return f"{note['id']} {note['status']}"
    figures = "" if note["files"] is None else f", {changes(note['files'], note['added'], note['removed'])}"
    return f"{note['id']} {note['status']}, {note['branch']}{figures}"


async def hints(desk: Desk, task: TaskInfo) -> list[str]:
    """What a person may want to do next about a task."""
    if task["status"] in ("failed", "cancelled"):
        from midwatch.domain.budget import again

        return [f"Try again: {again(task['id'], task['budget'], task['usage'])}"]
    if task["worktree"] is not None and task["worktree"]["status"] == "kept" and task["status"] == "done":
        return [next_steps(task["worktree"]["id"])]
    if task["wait"] == "approval":
        asked = [a for a in await desk.client.approvals() if a["task_id"] == task["id"]]
        return [
            f"It asks: {clean(a['question'])}\nAnswer: midwatch approve {a['id']} | midwatch deny {a['id']}"
            for a in asked
        ]
    if task["status"] == "pending" and not await desk.served():
        return ["No server runs; start one with `midwatch up`."]
    return []


def result(task_id: TaskId, as_json: AsJson = False) -> None:
    """Print the whole result of a task that is done."""

    async def act() -> None:
        async with connect() as desk:
            text = await desk.client.result(task_id)
        if as_json:
            emit({"id": task_id, "result": text})
        else:
            say(clean(text) if sys.stdout.isatty() else text)

    run(act())


def cancel(task_id: TaskId, as_json: AsJson = False) -> None:
    """Stop a task. A running one ends when its agent has been stopped."""

    async def act() -> None:
        async with connect() as desk:
            task = await desk.client.cancel(task_id)
        told(task, as_json, f"{task['id']} {'cancelled' if task['status'] == 'cancelled' else 'is being stopped'}")

    run(act())


def retry(task_id: TaskId, budget: BudgetText = None, as_json: AsJson = False) -> None:
    """Have a failed or cancelled task done again, as a new task that goes on with what the old one kept. What that has
    spent counts; one whose budget is spent needs a larger one."""
    more = limits(budget)

    async def act() -> None:
        async with connect() as desk:
            task = await desk.client.retry(task_id, budget=more)
            told(task, as_json, f"{task['id']} submitted to {task['agent']}, as a retry of {task['retry_of']}")
            if not await desk.served():
                note("No server runs, so nothing runs this task yet; start one with `midwatch up`.")

    run(act())
