"""Command `usage`: show the cost of tasks by actor, agent, session, model or day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from midwatch.base.errors import InvalidInput
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import connect
from midwatch.cli.output import format_duration, format_money, format_time, join, table, values
from midwatch.cli.parameters import Option
from midwatch.domain.usage import describe_gaps

if TYPE_CHECKING:
    from midwatch.wire.usage import UsageInfo


Part = Literal["actor", "agent", "session", "model", "day"]
"""The ways to group rows, as in `midwatch.domain.usage.By`."""
COLUMNS = ("TASKS", "DONE", "FAILED", "CANCELLED", "TIME", "IN", "OUT", "COST")
NAMELESS = {"session": "(no conversation)", "model": "(unknown)", "actor": "(nobody)"}


@command()
async def usage(
    since: Annotated[
        str, Option("--since", metavar="SPAN|TIME", help="Start: 7d, 12h, or a time such as 2026-03-01T08:00.")
    ] = "24h",
    until: Annotated[
        str | None,
        Option("--until", metavar="SPAN|TIME", help="End, like --since; 1d is a day ago. Default: now."),
    ] = None,
    by: Annotated[
        list[Part] | None, Option("--by", help="Group by this field. Repeatable. Default: actor and agent.")
    ] = None,
) -> Reply:
    """Show the cost of tasks that have ended."""
    now = datetime.now(UTC)
    begin, end = parse_moment(since, now), None if until is None else parse_moment(until, now, "until")
    async with connect() as desk:
        used = await desk.client.usage(begin, end, by or None)
    return Reply(used, lambda: describe_usage(used))


def describe_usage(used: UsageInfo) -> str:
    """Return a usage report as a table, with a note about tasks that did not report their usage."""
    since = f"Since {format_time(used['since'])}"
    if not used["rows"]:
        return join(since, "No task has ended in this period.")
    names = used["by"]
    rows = [
        (*(row[name] or NAMELESS.get(name, "") for name in names), *format_figures(row))
        for row in cast(Sequence[dict[str, Any]], used["rows"])
    ]
    if len(rows) > 1:
        rows.append(("total", *("" for _ in names[1:]), *format_figures(used["total"])))
    lacks = describe_gaps(used["total"])
    return join(
        since,
        table((*(name.upper() for name in names), *COLUMNS), rows),
        f"and {used['left_off']} more rows" if used["left_off"] else None,
        f"{lacks[0].upper()}{lacks[1:]}." if lacks else None,
    )


def parse_moment(text: str, now: datetime, option: str = "since") -> datetime:
    """Parse a span such as 7d, which means 7 days before `now`, or a time. A time without a zone is local."""
    from midwatch.base.durations import seconds

    try:
        return now - timedelta(seconds=seconds(text))
    except (InvalidInput, OverflowError):
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"--{option} must be a span such as 7d or a time such as 2026-03-01T08:00; got {text!r}.", field=option
        ) from None


def format_figures(used: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the numbers of one row as cells."""
    counts = values(used, "tasks", "done", "failed", "cancelled")
    tokens = ["unknown" if count is None else count for count in values(used, "input_tokens", "output_tokens")]
    return (*counts, format_duration(used["seconds"]), *tokens, format_money(used["cost_usd"]))
