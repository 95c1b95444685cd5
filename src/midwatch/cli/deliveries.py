"""Commands of deliveries: list notices, send a failed notice again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.options import Limit, OfTask
from midwatch.cli.output import format_time, join, shorten, table, values
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from midwatch.wire.deliveries import DeliveryInfo

HEADERS = ("ID", "STATUS", "CHANNEL", "NOTICE", "POLICY", "TRIES", "TASK", "ERROR")


@command()
async def deliveries(
    desk: Desk,
    failed: Annotated[bool, Option("--failed", help="Only notices that could not be sent.")] = False,
    task: OfTask = None,
    limit: Limit = 20,
) -> Reply:
    """List notices and their status, newest first."""
    notices = await desk.client.deliveries("failed" if failed else None, task, limit)
    rows = [
        (
            notice["id"],
            _describe_status(notice),
            *values(notice, "channel", "notice", "policy", "attempts", "task_id"),
            shorten(notice["error"]),
        )
        for notice in notices
    ]
    empty = "No notices." if failed or task else "No notices. To get some, use --route or the setting `notify`."
    hint = "Try again: midwatch redeliver ID" if any(n["status"] == "failed" for n in notices) else None
    return Reply({"deliveries": notices}, join(table(HEADERS, rows, empty), hint))


def _describe_status(notice: DeliveryInfo) -> str:
    """Return the status of a notice or, if it waits for a digest, the time of the digest."""
    due, collected = notice["due_at"], (notice["policy"] or "").startswith("digest:")
    if due and collected and not notice["attempts"] and datetime.fromisoformat(due) > datetime.now(UTC):
        return f"digest at {format_time(due)}"
    return str(notice["status"])


@command()
async def redeliver(
    desk: Desk, delivery_id: Annotated[str, Argument(metavar="ID", help="Id of the delivery.")]
) -> Reply:
    """Send a failed notice again."""
    delivery = await desk.client.retry_delivery(delivery_id)
    text = f"{delivery['id']} is sent to {delivery['channel']} again"
    return Reply(delivery, text, await desk.warn_without_worker("nothing is sent yet"))
