"""Command `run`: submit a task and watch it to its end."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing

import typer

from midwatch.base.errors import Conflict
from midwatch.cli import connection as desks
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
    Timeout,
    Workdir,
    Worktree,
)
from midwatch.cli.output import emit, note
from midwatch.cli.tasks import limits, prompt_text, wishes
from midwatch.cli.watch import Watch

INTERRUPTED = 130
PATIENCE = 2.0
"""After this long, `run` says why its task has not started."""
STOP_SECONDS = 20.0
"""How long an interrupted `run` waits for its agent to end."""


def run(
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
    """Hand in a task and follow it to its end. Exit status 0 only when it is done.

    Without a server the task runs in this process.
    """
    wish = wishes(
        agent=agent, workdir=workdir, worktree=worktree or None, share_workdir=share_workdir or None,
        timeout=timeout, budget=limits(budget), priority=priority, delay=delay, idempotency_key=key,
        route=route, session_key=session, origin_channel=origin_channel, origin_session=origin_session,
        on_crash=on_crash,
    )  # fmt: skip
    text = prompt_text(prompt)

    async def act() -> int:
        async with desks.connect(work=True) as desk:
            task = await desk.client.submit(text, wish)
            return await to_its_end(desk, task["id"], as_json)

    raise typer.Exit(desks.run(act()))


async def to_its_end(desk: desks.Desk, task_id: str, as_json: bool) -> int:
    """Show a task until it ends, with `as_json` only how. Returns the exit status: 0 when it is done."""
    status = await watched(desk, task_id, quiet=as_json)
    ended = await desk.client.get(task_id)
    while ended["transferred_to"]:
        ended = await desk.client.get(ended["transferred_to"])
    if as_json:
        emit(ended)
    return status if status is not None else 0 if ended["status"] == "done" else 1


async def watched(desk: desks.Desk, task_id: str, *, quiet: bool) -> int | None:
    """Show a task until it ends. Returns an exit status when the person went away before that."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    following = asyncio.create_task(follow(desk, task_id, Watch(quiet=quiet)))
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({following, stopped}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            if not quiet:
                await tell_wait(desk, task_id)
            await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
            return None
        if desk.runtime is None:
            note(f"\nIt goes on; look with `midwatch show {task_id}`, stop it with `midwatch cancel {task_id}`.")
            return INTERRUPTED
        note("\nStopping it ...")
        try:
            await desk.client.cancel(task_id)
        except Conflict:
            return None  # it ended in the same moment
        await asyncio.wait({following}, timeout=STOP_SECONDS)
        return INTERRUPTED
    finally:
        for task in (following, stopped):
            task.cancel()
        await asyncio.gather(following, stopped, return_exceptions=True)


async def tell_wait(desk: desks.Desk, task_id: str) -> None:
    """Say what keeps a task from starting."""
    task = await desk.client.get(task_id)
    if task["status"] == "pending":
        hint = " (one with --worktree waits for nobody)" if task["wait"] == "directory" else ""
        note(f"{task['status_text']}{hint}")


async def follow(desk: desks.Desk, task_id: str, watch: Watch) -> None:
    """Show what the task does until it has ended, and then whoever goes on with its work."""
    following: str | None = task_id
    while following is not None:
        task_id = following
        async with aclosing(desk.follow(0, task_id=task_id, live=True)) as events:
            async for event in events:
                watch.show(event)
                if event["kind"] == "task_finished":
                    following = event["payload"].get("transferred_to")
                    break
            else:
                following = None
    watch.end(await desk.client.get(task_id))
