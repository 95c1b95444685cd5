"""Commands of the watchdog: look for problems now and list the open alerts, acknowledge an alert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.output import format_age, join, shorten, table
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from midwatch.wire.alerts import AlertInfo

HEADERS = ("ID", "STATE", "SINCE", "ALERT")
NEW_LINE = "\n"
DETAIL_LENGTH = 300
NOTHING = "No alerts. Nothing is late, stuck, silent or stopped."

app = Group("Look for work that does not continue, list alerts, acknowledge one.")
Grace = Annotated[str | None, Option("--overdue-grace", help="Only look, with this grace for late work: 5m.")]
RunningGrace = Annotated[str | None, Option("--running-grace", help="Only look, with this grace for stuck tasks.")]
WaitingGrace = Annotated[str | None, Option("--waiting-grace", help="Only look, with this grace for waiting tasks.")]


@command(app, default=True)
async def watchdog(
    desk: Desk, overdue_grace: Grace = None, running_grace: RunningGrace = None, waiting_grace: WaitingGrace = None
) -> Reply:
    """Look for problems now, send notices, and list the open alerts. The server does this once a minute."""
    report = await desk.client.watchdog(overdue_grace, running_grace, waiting_grace)
    alerts = [*report["told"], *report["known"]]
    over = [f"Over: {first_line(alert)}" for alert in report["over"]]
    return Reply(report, lambda: join(list_alerts(alerts), *over))


@command(app)
async def ack(desk: Desk, alert_id: Annotated[str, Argument(metavar="ID", help="Id of the alert.")]) -> Reply:
    """Acknowledge an alert: there are no more notices about it until it is over."""
    alert = await desk.client.acknowledge_alert(alert_id)
    return Reply(alert, f"{alert['id']} is acknowledged: {first_line(alert)}")


def list_alerts(alerts: Sequence[AlertInfo]) -> str:
    """Return alerts as a table, with the details of each alert below its row."""
    rows = [(alert["id"] or "-", alert["status"], format_age(alert["since"]), first_line(alert)) for alert in alerts]
    head, *lines = table(HEADERS, rows, NOTHING).splitlines()
    details = [f"  {shorten(alert['text'].partition(NEW_LINE)[2], DETAIL_LENGTH)}" for alert in alerts]
    return join(head, *(text for pair in zip(lines, details, strict=True) for text in pair))


def first_line(alert: AlertInfo) -> str:
    """Return the first line of the text of an alert, which names the problem and its subject."""
    return shorten(alert["text"].partition("\n")[0])
