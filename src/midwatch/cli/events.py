"""Command `events`: read the log, or follow it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from midwatch.cli.desk import Desk, connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, line, local, note, say

if TYPE_CHECKING:
    from midwatch.wire import EventInfo

PAYLOAD_SHOWN = 90


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events as they come.")] = False,
    after: Annotated[int, typer.Option("--after", help="Begin after this seq.", min=0)] = 0,
    kind: Annotated[list[str] | None, typer.Option("--kind", "-k", help="Only these; may be repeated.")] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="Only of this task.")] = None,
    live: Annotated[bool, typer.Option("--live", help="With --follow: also what is never stored (deltas).")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the stored events, oldest first; with --json one object per line."""

    async def act() -> None:
        kinds = tuple(kind or ())
        async with connect() as desk:
            position = await stored(desk, after, kinds, task, as_json)
            sys.stdout.flush()
            if follow:
                async for event in desk.follow(position, kinds=kinds, task_id=task, live=live):
                    shown(event, as_json)
                    sys.stdout.flush()  # a pipe's reader must not wait for the buffer to fill

    run(act())


async def stored(desk: Desk, after: int, kinds: tuple[str, ...], task: str | None, as_json: bool) -> int:
    """Print what the log holds; returns where it ended."""
    position, last = after, None
    while True:
        page = await desk.client.events(position, kinds=kinds, task_id=task)
        if last is None:
            last = page["last_seq"]  # what is written from now on is news, not part of the stored log
            if 0 < after < page["oldest_seq"] - 1:
                note(f"Events {after + 1} to {page['oldest_seq'] - 1} are gone; [retention] says what is kept.")
        for event in page["events"]:
            if event["seq"] > last:
                return last
            shown(event, as_json)
            position = event["seq"]
        if not page["events"]:
            return max(position, last)


def shown(event: EventInfo, as_json: bool) -> None:
    """One event, as a line."""
    if as_json:
        emit(event)
        return
    said = [f"{name}={line(value, 40)}" for name, value in event["payload"].items() if value is not None]
    if (event.get("attempt") or 0) > 1:
        said.insert(0, f"attempt={event['attempt']}")
    told = line(" ".join(said), PAYLOAD_SHOWN)
    seq = str(event["seq"] or "-").rjust(6)
    say(f"{seq}  {local(event['time'])}  {event['kind']:<18}  {event.get('task_id') or '-'}  {told}")
