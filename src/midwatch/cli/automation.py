"""Commands of automations: preview."""

from __future__ import annotations

from typing import Annotated

import typer

from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, say

app = typer.Typer(help="Work on a schedule.", invoke_without_command=True)

Cron = Annotated[
    str | None, typer.Option("--cron", metavar="EXPR", help="Five fields, such as '0 9 * * 1-5', or @daily.")
]
Every = Annotated[str | None, typer.Option("--every", metavar="DURATION", help="An interval: 90m, 24h, 7d.")]
At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="Once: 2026-03-29T09:00, in 20m, 09:00, fri 09:00.")
]
Zone = Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="IANA time zone. Default: this machine's.")]


@app.callback()
def start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


@app.command()
def preview(
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Zone = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="TIME", help="Runs after this time. Default: now.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many runs to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show when a schedule would run. Creates nothing and needs no server."""
    from midwatch.clock import SECOND, SystemClock
    from midwatch.schedule import Schedule, find_zone, host_zone, local_iso, parse_moment, upcoming

    zone = find_zone(tz if tz is not None else host_zone()).key
    now = SystemClock().now() // SECOND * SECOND
    begin = parse_moment(after, now, zone) if after is not None else now
    moment = parse_moment(at, begin, zone) if at is not None else None
    schedule = Schedule.make(zone=zone, at=moment, every=every, cron=cron, anchor=begin)
    runs = [local_iso(run, zone) for run in upcoming(schedule, begin, count)]
    if as_json:
        emit({"next_runs": runs})
        return
    say(schedule.describe())
    for run in runs:
        say(f"  {run}")
    if not runs:
        say(f"  no run after {local_iso(begin, zone)}")
