"""Commands of sessions: sessions, and session new, show, send, interrupt, restart, close."""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from midwatch.base.errors import NotFound
from midwatch.cli import output as out
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.inputs import absolute_path, parse_policy, read_prompt
from midwatch.cli.options import AgentName, AsJson, Key, Limit, Priority, Workdir, Worktree
from midwatch.cli.parameters import Argument, Option
from midwatch.cli.watch import follow_task

if TYPE_CHECKING:
    from midwatch.client import Client
    from midwatch.wire.sessions import MessageInfo, SessionInfo
    from midwatch.wire.worktrees import WorktreeInfo

PAGE = 500
SendMode = Literal["after_turn", "interrupt", "after_tool"]
HEADERS = ("KEY", "STATUS", "AGENT", "USED", "QUEUED", "TITLE")

SessionName = Annotated[str, Argument(metavar="KEY", help="Key of the session.")]
SessionTitle = Annotated[str | None, Option("--title", help="Title.")]

HEARD = {
    "after_turn": "{0} is queued in {1}",
    "interrupt": "{0} gets the message at its next step",
    "after_tool": "{0} gets the message when its tool has returned",
}
"""The text that tells when the agent gets a message, by mode. {0} is the task that answers, {1} the session."""


app = Group("Talk to an agent from a script: new, show, send, interrupt, restart, close.")


@command()
async def sessions(
    desk: Desk,
    limit: Limit = 20,
    before: Annotated[str | None, Option("--before", metavar="KEY", help="Only sessions used before this one.")] = None,
) -> Reply:
    """List sessions, most recently used first."""
    if before:
        await desk.client.session(before)  # raises NotFound for a wrong key, which would return an empty page
    page = await desk.client.sessions(limit=limit, before=before)
    rows = [
        (
            *out.values(session, "key", "status", "agent"),
            out.format_age(session["updated_at"]),
            session["queued"] or "-",
            out.shorten(session["title"] or None),
        )
        for session in page["sessions"]
    ]
    more = f"More: midwatch sessions --before {shlex.quote(page['next'])}" if page["next"] else None
    return Reply(page, out.join(out.table(HEADERS, rows, "No sessions. Start one with `midwatch chat`."), more))


@command(app)
async def new(
    desk: Desk,
    agent: AgentName = None,
    workdir: Workdir = ".",
    worktree: Worktree = False,
    title: SessionTitle = None,
    key: Annotated[str | None, Option("--key", help="Key, such as chat:42. Default: a new key.")] = None,
    prompt: Annotated[str | None, Option("--prompt", help="First message.")] = None,
    approvals: Annotated[
        str | None, Option("--approvals", metavar="JSON", help="Rules for all turns: default, allow, ask, deny.")
    ] = None,
) -> Reply:
    """Open a session and print its key."""
    session = await desk.client.create_session(
        agent=agent, workdir=absolute_path(workdir), worktree=worktree, title=title, key=key, prompt=prompt,
        approvals=parse_policy(approvals) if approvals else None,
    )  # fmt: skip
    return Reply(session, lambda: print_key(session))


def print_key(session: SessionInfo) -> None:
    """Print the key of a new session, and on standard error how to send messages."""
    out.say(session["key"])
    out.note(f"Agent: {session['agent']}. Next: midwatch session send KEY TEXT | midwatch chat KEY")


@command(app)
async def show(
    desk: Desk,
    key: SessionName,
    after: Annotated[int, Option("--after", min=0, help="Only messages after this number.")] = 0,
) -> Reply:
    """Show a session and its messages."""
    session = await desk.client.session(key)
    messages = await read_messages(desk.client, key, after)
    text = out.join(out.fields(describe_session(session)), *(f"\n{describe_message(message)}" for message in messages))
    return Reply({**session, "messages": messages}, text)


@command(app, work="wait")
async def send(
    desk: Desk,
    key: SessionName,
    text: Annotated[str, Argument(metavar="TEXT", help="Message; - reads standard input.", callback=read_prompt)],
    wait: Annotated[bool, Option("--wait", "-w", help="Show the answer until it is complete.")] = False,
    mode: Annotated[
        SendMode, Option("--mode", "-m", help="When an agent that is working gets the message.", show_default=True)
    ] = "after_turn",
    priority: Priority = 0,
    idempotency_key: Key = None,
    as_json: AsJson = False,
) -> Reply | int:
    """Send a message to a session. If the agent is working, --mode chooses when it gets the message."""
    task = await desk.client.send(key, text, mode=mode, priority=priority, idempotency_key=idempotency_key)
    if wait:
        return await follow_task(desk, task["id"], as_json)
    notice = await desk.warn_without_worker("no agent answers yet") if task["status"] == "pending" else None
    return Reply(task, HEARD[task["mode"]].format(task["id"], key), notice)


@command(app)
async def interrupt(
    desk: Desk,
    key: SessionName,
    stop: Annotated[bool, Option("--stop", help="Let the agent give a final answer without tools.")] = False,
    hint: Annotated[str | None, Option("--hint", help="What the final answer should be about.")] = None,
) -> Reply:
    """Stop the running task of a session. Waiting messages still run."""
    reply = await desk.client.interrupt(key, "stop" if stop else "abort", hint=hint)
    task, resume = reply["interrupted"], reply["resume"]
    text = out.join(
        f"{task} {'is asked for a final answer' if stop else 'is being stopped'}"
        if task
        else f"No task is running in {key}.",
        f"Its automation or goal is paused; resume it with: {resume}" if resume else None,
    )
    return Reply(reply, text)


@command(app)
async def restart(desk: Desk, key: SessionName) -> Reply:
    """Restart a session: end its agent's process. The next message starts a new process."""
    session = await desk.client.restart_session(key)
    text = f"The next message to {key} starts a new process. It continues the conversation if the agent can do this."
    return Reply(session, text)


@command(app)
async def close(desk: Desk, key: SessionName) -> Reply:
    """Close a session: cancel its open tasks and accept no more messages."""
    session = await desk.client.close_session(key)
    tree = await find_worktree(desk.client, session)
    return Reply(session, out.join(f"{session['key']} is closed", describe_left(tree) if tree else None))


async def find_worktree(client: Client, session: SessionInfo) -> WorktreeInfo | None:
    """Return the worktree of a closed session, or None if it does not exist any more."""
    if session["worktree"] is None:
        return None
    with suppress(NotFound):
        tree = await client.worktree(session["worktree"])
        return tree if tree["status"] != "removed" else None
    return None


def describe_left(tree: WorktreeInfo) -> str:
    """Return the path and changes of a worktree that still exists, and the next commands."""
    changes = out.format_changes(tree["files"], tree["added"], tree["removed"])
    text = f"Its worktree {tree['id']} is kept in {tree['path']}, on {tree['branch']}: {changes}"
    return out.join(text, out.suggest_merge(tree["id"]))


async def read_messages(client: Client, key: str, after: int = 0) -> list[MessageInfo]:
    """Return all messages of a conversation, in order."""
    messages: list[MessageInfo] = []
    while True:
        page = await client.messages(key, after, limit=PAGE)
        messages += page
        if len(page) < PAGE:
            return messages
        after = page[-1]["number"]


def describe_session(session: SessionInfo) -> list[out.Field]:
    """Return the details of a session as names and values, for people."""
    return [
        *out.pick(session, "key", "status", "title", "agent", "workdir", "worktree"),
        *out.pick(session, thread="thread_id", runs="running_task"),
        ("queued", session["queued"] or None),
        *out.pick(session, "creator", created="created_at", used="updated_at"),
    ]


def describe_message(message: MessageInfo) -> str:
    """Return one message as text: its number, author and time, then its content."""
    who = message["author"] or message["role"] if message["role"] == "user" else message["role"]
    head = out.paint(f"{message['number']}  {out.clean(who)}  {out.format_time(message['time'])}", "dim")
    return out.join(head, out.clean_for_terminal(message["text"]))
