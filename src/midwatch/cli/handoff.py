"""Commands of handoffs: to, list, show, cancel, retry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from midwatch.base.errors import HandoffError, HandoffOverdue, HandoffRefused, InvalidInput
from midwatch.cli.connection import Desk, connect, own_token, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import age, emit, fields, line, local, note, say, span, table

if TYPE_CHECKING:
    from midwatch.wire.handoffs import HandoffInfo

OPEN = frozenset({"pending", "accepted", "in_progress"})
WAIT_SECONDS = 15.0
"""How long one request waits; the next goes on waiting."""

HandoffId = Annotated[str, typer.Argument(metavar="ID", help="Id of the handoff.")]
Key = Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key and wishes make one handoff.")]

app = typer.Typer(help="Work that one agent, or a person, passes to another agent.", invoke_without_command=True)


@app.callback()
def start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


class Whom(NamedTuple):
    """Who gets it, and what is to be done."""

    agent: str | None
    text: str


@app.command("to")
def hand_over(
    said: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[AGENT] [TEXT]",
            help="Who gets it, unless --type chooses, and what; - reads it from standard input.",
        ),
    ] = None,
    task_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Type of the work; chooses the agent if none is named.")
    ] = None,
    given: Annotated[
        str | None, typer.Option("--input", metavar="JSON", help="What it needs beside the text, or instead of it.")
    ] = None,
    from_task: Annotated[
        str | None, typer.Option("--from-task", metavar="ID", help="The task that is handed over, with what was said.")
    ] = None,
    timeout: Annotated[str | None, typer.Option("--timeout", help="Time until it must be done: 90s, 10m.")] = None,
    retries: Annotated[int, typer.Option("--retries", min=0, max=20, help="Further tries when it fails.")] = 0,
    priority: Annotated[int, typer.Option("--priority", min=-100, max=100, help="Higher first.")] = 0,
    workdir: Annotated[str | None, typer.Option("--workdir", help="Default: the task's, or the current one.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end and print its answer.")] = False,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Hand work to an agent. With --wait the exit status is 0 only when it is completed."""
    from pathlib import Path

    wordless = given is not None or from_task is not None
    meant = addressed(said or [], task_type, wordless=wordless)
    work = {"type": task_type or "", "input": read_json(given), "priority": priority}
    theirs = workdir is None and (from_task is not None or own_token() is not None)
    place = None if theirs else str(Path(workdir or ".").expanduser().absolute())

    async def act() -> int:
        async with connect(work=wait) as desk:
            whom = await named(desk, meant) if wordless and meant.agent is None else meant
            made = await desk.client.hand_over(
                whom.agent, {**work, "description": whom.text}, source_task=from_task, timeout=timeout,
                max_retries=retries, workdir=place, wait=WAIT_SECONDS if wait else 0, key=key,
            )  # fmt: skip
            if wait or made["task_id"] is None:  # nobody took it, when it was asked for before
                return await to_its_end(desk, made, as_json)
            told(made, as_json, f"{made['id']} handed to {made['to_agent_id']} as task {made['task_id']}")
            if not await desk.served():
                note("No server runs, so nobody works on it yet; start one with `midwatch up`.")
        return 0

    raise typer.Exit(run(act()))


@app.command("list")
def list_handoffs(
    status: Annotated[list[str] | None, typer.Option("--status", "-s", help="Only these; may be repeated.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Only from or to this agent.")] = None,
    root: Annotated[str | None, typer.Option("--root", metavar="ID", help="Only what came of this task.")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="ID", help="Only older ones.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List handoffs, newest first."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.handoffs(status=status or (), agent=agent, root=root, before=before, limit=limit)
        if as_json:
            emit(found)
        elif not found["handoffs"]:
            say("No handoffs.")
        else:
            table(("ID", "STATUS", "FROM", "TO", "AGE", "TOOK", "WHAT"), [row(one) for one in found["handoffs"]])
            if found["next"]:
                note(f"There are more: --before {found['next']}")

    run(act())


@app.command()
def show(handoff_id: HandoffId, as_json: AsJson = False) -> None:
    """Show everything about a handoff."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.handoff(handoff_id)
        if as_json:
            emit(found)
        else:
            fields(described(found))

    run(act())


@app.command()
def cancel(handoff_id: HandoffId, as_json: AsJson = False) -> None:
    """End a handoff; its task is stopped wherever it runs."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.cancel_handoff(handoff_id)
        told(found, as_json, f"{found['id']} is cancelled")

    run(act())


@app.command()
def retry(handoff_id: HandoffId, key: Key = None, as_json: AsJson = False) -> None:
    """Hand the same work to the same agent again, as a new handoff."""

    async def act() -> None:
        async with connect() as desk:
            made = await desk.client.retry_handoff(handoff_id, key)
        told(made, as_json, f"{made['id']} handed to {made['to_agent_id']} as task {made['task_id']}")

    run(act())


# -- words -------------------------------------------------------------------------------------------------------------


def addressed(said: list[str], task_type: str | None, *, wordless: bool) -> Whom:
    """Who and what was meant; `wordless` when there is something to do without a text."""
    from midwatch.cli.tasks import prompt_text

    if len(said) == 2:
        return Whom(said[0], prompt_text(said[1]))
    if len(said) == 1 and task_type:
        return Whom(None, prompt_text(said[0]))
    if wordless and len(said) == (0 if task_type else 1):
        return Whom(said[0] if said else None, "")
    raise InvalidInput(
        'say whom and what: midwatch handoff to AGENT "text", or --type TYPE "text"; '
        "with --from-task or --input the text may be left out.",
        field="to",
    )


async def named(desk: Desk, meant: Whom) -> Whom:
    """The same; one word beside --type that is an agent's name names that agent, where no text is needed."""
    known = {agent["name"] for agent in await desk.client.agents()} if meant.text else set()
    return Whom(meant.text, "") if meant.text in known else meant


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number that JSON knows")


def read_json(text: str | None) -> Any:
    """What was written as JSON."""
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"--input is not JSON: {problem}; a text needs quotes.", field="input") from None


async def to_its_end(desk: Desk, made: HandoffInfo, as_json: bool) -> int:
    """Wait for the answer and print it; the error that says why there is none otherwise."""
    while made["status"] in OPEN:
        made = await desk.client.handoff(made["id"], WAIT_SECONDS)
    if as_json:
        emit(made)
        return 0 if made["status"] == "completed" else 1
    if made["status"] != "completed":
        why = (
            f"handoff {made['id']} to {made['to_agent_id']} {made['status']}: {made['reason'] or 'no reason is known'}"
        )
        kinds = {"expired": HandoffOverdue, "rejected": HandoffRefused}
        raise kinds.get(made["status"], HandoffError)(why, made["id"])
    say(output(made))
    return 0


def output(found: HandoffInfo) -> str:
    """Its answer as text."""
    said = found["result"]["output"] if found["result"] else None
    return said if isinstance(said, str) else "" if said is None else json.dumps(said, ensure_ascii=False)


def late(found: HandoffInfo) -> str | None:
    """What came after its end; that its task was stopped is no news."""
    came = found["late"]
    if came is None or came["outcome"] == "cancelled":
        return None
    return ": ".join(str(part) for part in (came["outcome"], came["output"] or came["error"]) if part)


def told(found: HandoffInfo, as_json: bool, text: str) -> None:
    """Say what became of a handoff."""
    if as_json:
        emit(found)
    else:
        say(text)


def took(found: HandoffInfo) -> str:
    """How long it took."""
    from datetime import datetime

    if not found["completed_at"]:
        return "-"
    begun, over = (datetime.fromisoformat(moment) for moment in (found["created_at"], found["completed_at"]))
    return span((over - begun).total_seconds())


def row(found: HandoffInfo) -> tuple[object, ...]:
    """A handoff on one line."""
    work = found["task"]
    what = work["description"] or (work["input"] if isinstance(work["input"], str) else json.dumps(work["input"]))
    source = found["from_agent_id"] or found["creator"] or "-"
    return (
        found["id"], found["status"], source, found["to_agent_id"] or "-", age(found["created_at"]), took(found),
        f"[{work['type']}] {line(what, 40)}" if work["type"] else line(what, 40),
    )  # fmt: skip


def described(found: HandoffInfo) -> list[tuple[str, object]]:
    """A handoff as names and values for people."""
    work = found["task"]
    refusals = "\n".join(f"{one['agent']}: {one['reason']}" for one in found["refusals"])
    failures = "\n".join(f"{one['attempt']}: {one['error']}" for one in found["attempts"] if one["error"])
    given = work["input"] if isinstance(work["input"], str | None) else json.dumps(work["input"], ensure_ascii=False)
    return [
        ("id", found["id"]),
        ("status", found["status"]),
        ("reason", found["reason"]),
        ("from", found["from_agent_id"] or found["creator"]),
        ("to", found["to_agent_id"]),
        ("form", found["form"]),
        ("type", work["type"]),
        ("what", work["description"]),
        ("input", given),
        ("way", " → ".join([*(one["agent"] for one in found["chain"]), found["to_agent_id"]])),
        ("refused by", refusals),
        ("answer", output(found)),
        ("late", late(found)),
        ("task", found["task_id"]),
        ("out of task", found["source_task"]),
        ("retry of", found["retry_of"]),
        ("messages", len(found["context"]["messages"]) or None),
        ("tries", f"{found['retry_count'] + 1} of {found['max_retries'] + 1}" if found["task_id"] else None),
        ("failed tries", failures if found["retry_count"] else None),
        ("asked by", found["creator"]),
        ("created", local(found["created_at"])),
        ("accepted", local(found["accepted_at"]) if found["accepted_at"] else None),
        ("ended", local(found["completed_at"]) if found["completed_at"] else None),
        ("took", took(found) if found["completed_at"] else None),
        ("deadline", local(found["deadline_at"])),
    ]
