"""Command `events`: read the log, or follow it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from midwatch.base.errors import InvalidInput, Pruned
from midwatch.cli.connection import Desk, connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, line, local, note, say

if TYPE_CHECKING:
    from midwatch.client import Which
    from midwatch.wire.events import EventInfo

PAYLOAD_SHOWN = 90


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events as they come.")] = False,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", help="Begin after this seq.", min=0)] = 0,
    before: Annotated[
        int | None, typer.Option("--before", metavar="SEQ", help="Only the last ones before this seq.", min=0)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many, with --before.")] = 50,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", "-k", help="Only these; may be repeated; `tool_*` is all that begin so."),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", metavar="ID", help="Only of this task.")] = None,
    turn: Annotated[str | None, typer.Option("--turn", metavar="ID", help="Only of this turn.")] = None,
    session: Annotated[str | None, typer.Option("--session", metavar="KEY", help="Only of this session.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Only of this agent.")] = None,
    actor: Annotated[str | None, typer.Option("--actor", help="Only what this actor did.")] = None,
    live: Annotated[bool, typer.Option("--live", help="With --follow: also what is never stored (deltas).")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the stored events, oldest first; with --json one object per line."""
    if before is not None and (follow or after):
        raise InvalidInput("--before goes back from a seq; leave out --after and --follow.", field="before")
    which: Which = {
        "kinds": known(kind or []), "task_id": task, "turn_id": turn, "session_key": session, "agent": agent,
        "actor": actor,
    }  # fmt: skip

    async def act() -> None:
        async with connect() as desk:
            if before is not None:
                await back(desk, before, limit, which, as_json)
                return
            position = await stored(desk, after, which, as_json)
            sys.stdout.flush()
            if follow:
                async for event in desk.follow(position, live=live, **which):
                    shown(event, as_json)
                    sys.stdout.flush()  # a pipe's reader must not wait for the buffer to fill

    run(act())


def known(kinds: list[str]) -> tuple[str, ...]:
    """The kinds, if there are such."""
    from difflib import get_close_matches

    from midwatch.domain.event import KINDS, kinds_of

    for name in kinds:
        if not kinds_of(name):
            near = get_close_matches(name, KINDS, 1)
            meant = f"; did you mean {near[0]}? The" if near else "; the"
            raise InvalidInput(
                f"no kind of event is called {name!r}{meant} known kinds: {', '.join(sorted(KINDS))}.", field="kind"
            )
    return tuple(kinds)


async def stored(desk: Desk, after: int, which: Which, as_json: bool) -> int:
    """Print what the log holds; returns where it ended."""
    position, last = after, None
    while True:
        try:
            page = await desk.client.events(position, **which)
        except Pruned as gone:
            note(f"Events {position + 1} to {gone.oldest_seq - 1} are gone; [retention] says what is kept.")
            position = gone.oldest_seq - 1
            continue
        if last is None:
            last = page["last_seq"]  # what is written from now on is news, not part of the stored log
        for event in page["events"]:
            if event["seq"] > last:
                return last
            shown(event, as_json)
            position = event["seq"]
        if not page["events"]:
            return max(position, last)


async def back(desk: Desk, before: int, limit: int, which: Which, as_json: bool) -> None:
    """Print the last events before a seq."""
    found = (await desk.client.events(before=before, limit=limit, **which))["events"]
    for event in found:
        shown(event, as_json)
    if len(found) == limit:
        note(f"Earlier: midwatch events --before {found[0]['seq']}")


def shown(event: EventInfo, as_json: bool) -> None:
    """One event, as a line."""
    from midwatch.domain.event import kind_text

    if as_json:
        emit(event)
        return
    said = [f"{name}={line(value, 40)}" for name, value in event["payload"].items() if value is not None]
    if (event.get("attempt") or 0) > 1:
        said.insert(0, f"attempt={event['attempt']}")
    told = line(" ".join(said), PAYLOAD_SHOWN)
    seq = str(event["seq"] or "-").rjust(6)
    when = local(event.get("time")).ljust(19)
    about = event.get("task_id") or event.get("session_key") or "-"
    say(f"{seq}  {when}  {line(kind_text(event['kind'])):<18}  {line(about)}  {told}")
