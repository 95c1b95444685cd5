"""Command `usage`: what work has cost, by actor, agent, session, model or day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midwatch.base.errors import InvalidInput
from midwatch.cli.connection import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, local, money, say, span, table
from midwatch.domain.usage import told

if TYPE_CHECKING:
    from midwatch.wire.usage import UsageInfo


class Part(StrEnum):
    """What rows are told apart by, as `midwatch.domain.usage.By`; a list of literals is no option."""

    actor = "actor"
    agent = "agent"
    session = "session"
    model = "model"
    day = "day"


COLUMNS = ("TASKS", "DONE", "FAILED", "CANCELLED", "TIME", "IN", "OUT", "COST")
NAMELESS = {"session": "(no conversation)", "model": "(unknown)", "actor": "(nobody)"}


def usage(
    since: Annotated[
        str, typer.Option("--since", metavar="SPAN|TIME", help="7d, 12h, or a time such as 2026-03-01T08:00.")
    ] = "24h",
    until: Annotated[
        str | None, typer.Option("--until", metavar="SPAN|TIME", help="The same; 1d is until a day ago. Default: now.")
    ] = None,
    by: Annotated[
        list[Part] | None, typer.Option("--by", help="Add up by it; may be repeated. Default: by actor and agent.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the tasks that ended since then have cost."""
    now = datetime.now(UTC)
    begins, ends = moment(since, now), None if until is None else moment(until, now, "until")

    async def act() -> None:
        async with connect() as desk:
            used = await desk.client.usage(begins, ends, by or None)
        if as_json:
            emit(used)
        else:
            show(used)

    run(act())


def show(used: UsageInfo) -> None:
    """Usage as a table, and what it leaves out."""
    say(f"Since {local(used['since'])}")
    if not used["rows"]:
        say("No task has ended since.")
        return
    names = used["by"]
    shown = [(*(row[name] or NAMELESS.get(name, "") for name in names), *figures(row)) for row in _open(used["rows"])]
    if len(shown) > 1:
        shown.append(("total", *("" for _ in names[1:]), *figures(used["total"])))
    table((*(name.upper() for name in names), *COLUMNS), shown)
    if used["left_off"]:
        say(f"and {used['left_off']} more rows")
    if lacks := told(used["total"]):
        say(f"{lacks[0].upper()}{lacks[1:]}.")


def _open(rows: Any) -> list[dict[str, Any]]:
    """Rows whose names are asked for at run time."""
    return list(rows)


def moment(said: str, now: datetime, option: str = "since") -> datetime:
    """The time that is meant: a span before now, or a time, which is local unless it names its zone."""
    from midwatch.base.durations import seconds

    try:
        return now - timedelta(seconds=seconds(said))
    except (InvalidInput, OverflowError):
        pass
    try:
        return datetime.fromisoformat(said).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"--{option} is a span such as 7d or a time such as 2026-03-01T08:00; got {said!r}.", field=option
        ) from None


def figures(used: Mapping[str, Any]) -> tuple[object, ...]:
    """The figures of one row for people; - is unknown."""
    counts = (used["tasks"], used["done"], used["failed"], used["cancelled"], span(used["seconds"]))
    tokens = ("-" if used[name] is None else used[name] for name in ("input_tokens", "output_tokens"))
    return (*counts, *tokens, money(used["cost_usd"]))
