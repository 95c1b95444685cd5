"""Command `watchdog`: find work that is overdue, stuck or silent now."""

from __future__ import annotations

from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.output import format_time


@command()
async def watchdog(desk: Desk) -> Reply:
    """Find work that is overdue, stuck or silent now, and send notices. The server does this once a minute."""
    report = await desk.client.watchdog()
    alerts = [(alert, "") for alert in report["told"]] + [(alert, ", reported before") for alert in report["known"]]
    lines = [f"{alert['text']}\n  since {format_time(alert['since'])}{known}" for alert, known in alerts]
    return Reply(report, "\n".join(lines) or "Nothing is overdue, stuck or silent.")
