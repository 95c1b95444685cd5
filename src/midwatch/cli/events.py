"""Command `events`: print the log, or follow the log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from midwatch.base.errors import InvalidInput, Pruned
from midwatch.cli.command import command
from midwatch.cli.connection import Desk, connect
from midwatch.cli.options import AsJson, OfAgent, OfTask
from midwatch.cli.output import emit, format_time, note, say, shorten
from midwatch.cli.parameters import Option

if TYPE_CHECKING:
    from midwatch.client import Which
    from midwatch.wire.events import EventInfo

PAYLOAD_LENGTH = 90


@command()
async def events(
    follow: Annotated[bool, Option("--follow", "-f", help="Print new events as they happen.")] = False,
    after: Annotated[int, Option("--after", metavar="SEQ", help="Start after this sequence number.", min=0)] = 0,
    before: Annotated[
        int | None, Option("--before", metavar="SEQ", help="Only the last events before this sequence number.", min=0)
    ] = None,
    limit: Annotated[int, Option("--limit", "-n", min=1, max=1000, help="Number of events, with --before.")] = 50,
    kind: Annotated[
        list[str] | None,
        Option("--kind", "-k", help="Only this kind. Repeatable; `tool_*` means all that begin with tool_."),
    ] = None,
    task: OfTask = None,
    tree: Annotated[
        str | None, Option("--tree", metavar="ID", help="Only this task or goal, and all work that grew out of it.")
    ] = None,
    turn: Annotated[str | None, Option("--turn", metavar="ID", help="Only events of this turn.")] = None,
    session: Annotated[str | None, Option("--session", metavar="KEY", help="Only events of this session.")] = None,
    agent: OfAgent = None,
    actor: Annotated[str | None, Option("--actor", help="Only events caused by this actor.")] = None,
    live: Annotated[bool, Option("--live", help="With --follow: include live events, which are never stored.")] = False,
    as_json: AsJson = False,
) -> int:
    """Print stored events, oldest first. With --json, print one JSON object per line."""
    if before is not None and (follow or after):
        raise InvalidInput("--before cannot be used with --after or --follow; remove --before.", field="before")
    which: Which = {
        "kinds": check_kinds(kind or []), "task_id": task, "turn_id": turn, "session_key": session, "agent": agent,
        "actor": actor, "tree": tree,
    }  # fmt: skip
    async with connect() as desk:
        if before is not None:
            await print_before(desk, before, limit, which, as_json)
            return 0
        position = await print_stored(desk, after, which, as_json)
        sys.stdout.flush()
        if follow:
            async for event in desk.follow(position, live=live, **which):
                print_event(event, as_json)
                sys.stdout.flush()  # the reader of a pipe gets each event at once
    return 0


def check_kinds(kinds: list[str]) -> tuple[str, ...]:
    """Return the event kinds as a tuple. Raise InvalidInput if a kind does not exist."""
    from difflib import get_close_matches

    from midwatch.domain.event import KINDS, kinds_of

    for name in kinds:
        if not kinds_of(name):
            near = get_close_matches(name, KINDS, 1)
            suggestion = f"; did you mean {near[0]}? The" if near else "; the"
            raise InvalidInput(
                f"there is no event kind {name!r}{suggestion} known kinds are: {', '.join(sorted(KINDS))}.",
                field="kind",
            )
    return tuple(kinds)


async def print_stored(desk: Desk, after: int, which: Which, as_json: bool) -> int:
    """Print the stored events after `after`. Return the seq of the last event in the log."""
    position, last = after, None
    while True:
        try:
            page = await desk.client.events(position, **which)
        except Pruned as gone:
            note(f"Events {position + 1} to {gone.oldest_seq - 1} were removed; see the settings in [retention].")
            position = gone.oldest_seq - 1
            continue
        if last is None:
            last = page["last_seq"]  # stop here: newer events are printed by --follow
        for event in page["events"]:
            if event["seq"] > last:
                return last
            print_event(event, as_json)
        if page["next"] is None or page["next"] >= last:
            return max(position, last)
        position = page["next"]


async def print_before(desk: Desk, before: int, limit: int, which: Which, as_json: bool) -> None:
    """Print the last `limit` events before the seq `before`."""
    found: list[EventInfo] = []
    start: int | None = before
    while start is not None and len(found) < limit:
        page = await desk.client.events(before=start, limit=limit - len(found), **which)
        found, start = page["events"] + found, page["next"]
    for event in found:
        print_event(event, as_json)
    if start is not None:
        note(f"Earlier: midwatch events --before {start}")


def print_event(event: EventInfo, as_json: bool) -> None:
    """Print one event on a line."""
    from midwatch.domain.event import kind_text

    if as_json:
        emit(event)
        return
    payload = [f"{name}={shorten(value, 40)}" for name, value in event["payload"].items() if value is not None]
    if (event.get("attempt") or 0) > 1:
        payload.insert(0, f"attempt={event['attempt']}")
    seq = str(event["seq"] or "-").rjust(6)
    time = format_time(event.get("time")).ljust(19)
    subject = shorten(event.get("task_id") or event.get("session_key") or "-")
    text = shorten(" ".join(payload), PAYLOAD_LENGTH)
    say(f"{seq}  {time}  {shorten(kind_text(event['kind'])):<18}  {subject}  {text}")
