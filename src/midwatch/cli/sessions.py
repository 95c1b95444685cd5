"""Commands of sessions: sessions, and session new, show, send, interrupt, close."""

from __future__ import annotations

import os.path
import sys
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from midwatch.base.errors import NotFound
from midwatch.cli.connection import connect, run
from midwatch.cli.options import AgentName, AsJson, Key, Priority, Workdir, Worktree
from midwatch.cli.output import age, changes, clean, emit, fields, line, local, next_steps, note, paint, say, table

if TYPE_CHECKING:
    from midwatch.client import Client
    from midwatch.wire.sessions import MessageInfo, SessionInfo
    from midwatch.wire.worktrees import WorktreeInfo

PAGE = 500

SessionName = Annotated[str, typer.Argument(metavar="KEY", help="Key of the session.")]
Title = Annotated[str | None, typer.Option("--title", help="What it is about.")]

HEARD = {
    "after_turn": "{0} waits for its turn in {1}",
    "interrupt": "{0} hears it at its next step",
    "after_tool": "{0} hears it when its tool has returned",
}
"""What is said of a message, by when the agent hears it: with the task that answers, and the session."""


class SendModes(StrEnum):
    """When a busy agent is to hear a message."""

    after_turn = "after_turn"
    interrupt = "interrupt"
    after_tool = "after_tool"


app = typer.Typer(
    help="Talk to an agent from a script: new, show, send, interrupt, close.", invoke_without_command=True
)


@app.callback()
def start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


def sessions(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most this many.")] = 20,
    before: Annotated[str | None, typer.Option("--before", metavar="KEY", help="Only those used before it.")] = None,
    as_json: AsJson = False,
) -> None:
    """List conversations, the most recently used first."""

    async def act() -> None:
        async with connect() as desk:
            if before:
                await desk.client.session(before)  # so that a mistyped key is an error, not an end
            page = await desk.client.sessions(limit=limit, before=before)
        if as_json:
            emit(page)
            return
        if not page["sessions"]:
            say("No sessions. Begin one with `midwatch chat`.")
            return
        rows = [
            (s["key"], s["status"], s["agent"], age(s["updated_at"]), s["queued"] or "-", line(s["title"] or None))
            for s in page["sessions"]
        ]
        table(("KEY", "STATUS", "AGENT", "USED", "QUEUED", "TITLE"), rows)
        if page["next"]:
            say(f"More: midwatch sessions --before '{page['next']}'")

    run(act())


@app.command()
def new(
    agent: AgentName = None,
    workdir: Workdir = ".",
    worktree: Worktree = False,
    title: Title = None,
    key: Annotated[str | None, typer.Option("--key", help="Its key, such as chat:42. Default: a new one.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="What to say first in it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Open a conversation, and print its key."""

    async def act() -> None:
        async with connect() as desk:
            made = await desk.client.create_session(
                agent=agent, workdir=absolute(workdir), worktree=worktree, title=title, key=key, prompt=prompt
            )
        if as_json:
            emit(made)
        else:
            say(made["key"])
            note(f"It is with {made['agent']}. Speak: midwatch session send KEY TEXT | midwatch chat KEY")

    run(act())


@app.command()
def show(
    key: SessionName,
    after: Annotated[int, typer.Option("--after", min=0, help="Only messages after this number.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show a conversation and what was said in it."""

    async def act() -> None:
        async with connect() as desk:
            session = await desk.client.session(key)
            messages = await said(desk.client, key, after)
        if as_json:
            emit({**session, "messages": messages})
            return
        fields(described(session))
        for message in messages:
            say()
            written(message)

    run(act())


@app.command()
def send(
    key: SessionName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say; - reads standard input.")],
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Show the answer, and exit 0 only when it is one.")
    ] = False,
    mode: Annotated[
        SendModes, typer.Option("--mode", "-m", help="When a busy agent is to hear it.", show_default=True)
    ] = SendModes.after_turn,
    priority: Priority = 0,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say something in a conversation. While it is busy the message waits for its turn, or goes into it."""
    from midwatch.cli.run import to_its_end
    from midwatch.cli.tasks import prompt_text, told

    whole = prompt_text(text)

    async def act() -> int:
        async with connect(work=wait) as desk:
            task = await desk.client.send(
                key, whole, mode=mode.value, priority=priority, idempotency_key=idempotency_key
            )
            if not wait:
                told(task, as_json, HEARD[task["mode"]].format(task["id"], key))
                if task["status"] == "pending" and not await desk.served():
                    note("No server runs, so nobody answers yet; start one with `midwatch up`.")
                return 0
            return await to_its_end(desk, task["id"], as_json)

    raise typer.Exit(run(act()))


@app.command()
def interrupt(
    key: SessionName,
    stop: Annotated[bool, typer.Option("--stop", help="No more tools, and one closing answer.")] = False,
    hint: Annotated[str | None, typer.Option("--hint", help="What the closing answer should be about.")] = None,
    as_json: AsJson = False,
) -> None:
    """Stop what runs in a conversation; what waits goes on."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.interrupt(key, "stop" if stop else "abort", hint=hint)
        stopped, resume = found["interrupted"], found["resume"]
        if as_json:
            emit(found)
        else:
            how = "is asked to close" if stop else "is being stopped"
            say(f"{stopped} {how}" if stopped else f"Nothing runs in {key}.")
            if resume:
                say(f"What it belongs to is paused; go on with: {resume}")

    run(act())


@app.command()
def restart(key: SessionName, as_json: AsJson = False) -> None:
    """End the agent's process of a conversation; the next message begins a new one."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.restart_session(key)
        if as_json:
            emit(found)
        else:
            say(f"{key} starts anew with its next message; the conversation is taken up where its agent can.")

    run(act())


@app.command()
def close(key: SessionName, as_json: AsJson = False) -> None:
    """Cancel what is open in a conversation and take no more messages."""

    async def act() -> None:
        async with connect() as desk:
            closed = await desk.client.close_session(key)
            left = await kept(desk.client, closed)
        if as_json:
            emit(closed)
            return
        say(f"{closed['key']} is closed")
        if left is not None:
            figures = changes(left["files"], left["added"], left["removed"])
            say(f"Its worktree {left['id']} is kept in {left['path']}, on {left['branch']}: {figures}")
            say(next_steps(left["id"]))

    run(act())


async def kept(client: Client, session: SessionInfo) -> WorktreeInfo | None:
    """The worktree a conversation leaves, if it has one that is there."""
    if session["worktree"] is None:
        return None
    with suppress(NotFound):
        found = await client.worktree(session["worktree"])
        return found if found["status"] != "removed" else None
    return None


def absolute(workdir: str) -> str:
    """A directory as a server understands it."""
    return os.path.abspath(os.path.expanduser(workdir))  # noqa: PTH100,PTH111 - symlinks stay


async def said(client: Client, key: str, after: int = 0) -> list[MessageInfo]:
    """All messages of a conversation, in order."""
    found: list[MessageInfo] = []
    while True:
        page = await client.messages(key, after, limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found
        after = page[-1]["number"]


def described(session: SessionInfo) -> list[tuple[str, object]]:
    """A session as names and values for people."""
    return [
        ("key", session["key"]),
        ("status", session["status"]),
        ("title", session["title"]),
        ("agent", session["agent"]),
        ("workdir", session["workdir"]),
        ("worktree", session["worktree"]),
        ("thread", session["thread_id"]),
        ("runs", session["running_task"]),
        ("queued", session["queued"] or None),
        ("creator", session["creator"]),
        ("created", local(session["created_at"])),
        ("used", local(session["updated_at"])),
    ]


def written(message: MessageInfo) -> None:
    """One message: who said it and when, then the text."""
    who = message["author"] or message["role"] if message["role"] == "user" else message["role"]
    say(paint(f"{message['number']}  {clean(who)}  {local(message['time'])}", "dim"))
    say(clean(message["text"]) if sys.stdout.isatty() else message["text"])
