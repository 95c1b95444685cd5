"""Command `usage`: what work has cost, by actor and agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from midwatch.cli.desk import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, local, say, span, table
from midwatch.errors import InvalidInput

if TYPE_CHECKING:
    from midwatch.wire import Consumed

COUNTED = ("tasks", "done", "failed", "cancelled", "seconds")
TOLD = ("input_tokens", "output_tokens", "cost_usd")
"""Figures that an agent may not tell."""


def usage(
    since: Annotated[
        str, typer.Option("--since", metavar="SPAN|TIME", help="7d, 12h, or a time such as 2026-03-01T08:00.")
    ] = "24h",
    by: Annotated[
        Literal["actor", "agent"] | None, typer.Option("--by", help="Add up by one of them. Default: by both.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the tasks that ended since then have cost."""
    begins = moment(since, datetime.now(UTC))

    async def act() -> None:
        async with connect() as desk:
            used = await desk.client.usage(begins)
        rows = added(used["rows"], (by,) if by else ("actor", "agent"))
        if as_json:
            emit({"since": used["since"], "total": used["total"], "rows": rows})
            return
        say(f"Since {local(used['since'])}")
        if not rows:
            say("No task has ended since.")
            return
        names = [by] if by else ["actor", "agent"]
        head = (*(name.upper() for name in names), "TASKS", "DONE", "FAILED", "CANCELLED", "TIME", "TOKENS", "COST")
        shown = [(*(row[name] for name in names), *figures(cast("Consumed", row))) for row in rows]
        if len(shown) > 1:
            shown.append(("total", *("" for _ in names[1:]), *figures(used["total"])))
        table(head, shown)

    run(act())


def moment(said: str, now: datetime) -> datetime:
    """The time that is meant: a span before now, or a time, which is local unless it names its zone."""
    from midwatch.clock import seconds

    try:
        return now - timedelta(seconds=seconds(said))
    except (InvalidInput, OverflowError):
        pass
    try:
        return datetime.fromisoformat(said).astimezone()
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"--since is a span such as 7d or a time such as 2026-03-01T08:00; got {said!r}.", field="since"
        ) from None


def added(rows: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Rows with the same names as one; a figure that nobody told stays unknown."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        total = sums.setdefault(key, {**dict(zip(names, key, strict=True)), **dict.fromkeys((*COUNTED, *TOLD))})
        for name in (*COUNTED, *TOLD):
            if row[name] is not None:
                total[name] = round((total[name] or 0) + row[name], 6)
    return sorted(sums.values(), key=lambda row: (-row["tasks"], *(row[name] for name in names)))


def figures(used: Consumed) -> tuple[object, ...]:
    """The figures of one row for people."""
    tokens = [part for part in (used["input_tokens"], used["output_tokens"]) if part is not None]
    cost = "-" if used["cost_usd"] is None else f"${used['cost_usd']:.2f}"
    counts = (used["tasks"], used["done"], used["failed"], used["cancelled"], span(used["seconds"]))
    return (*counts, sum(tokens) if tokens else "-", cost)
