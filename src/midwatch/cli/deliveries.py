"""Commands of deliveries: which notices were sent, wait or failed, and another try."""

from __future__ import annotations

from typing import Annotated

import typer

from midwatch.cli.connection import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, line, note, say, table

WHY_SHOWN = 60


def deliveries(
    failed: Annotated[bool, typer.Option("--failed", help="Only those that could not be sent.")] = False,
    task: Annotated[str | None, typer.Option("--task", "-t", metavar="ID", help="Only of this task.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List notices and what became of them, newest first."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.deliveries("failed" if failed else None, task, limit)
        if as_json:
            emit({"deliveries": found})
            return
        if not found:
            say(
                "No notices."
                if failed or task
                else "No notices. A task with --route, or the setting notify, sends some."
            )
            return
        rows = [
            (d["id"], d["status"], d["channel"], d["notice"], d["attempts"], d["task_id"], line(d["error"], WHY_SHOWN))
            for d in found
        ]
        table(("ID", "STATUS", "CHANNEL", "NOTICE", "TRIES", "TASK", "ERROR"), rows)
        if any(d["status"] == "failed" for d in found):
            say("Try again: midwatch redeliver ID")

    run(act())


def redeliver(
    delivery_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the delivery.")], as_json: AsJson = False
) -> None:
    """Try to send a failed notice again."""

    async def act() -> None:
        async with connect() as desk:
            again = await desk.client.retry_delivery(delivery_id)
            served = await desk.served()
        if as_json:
            emit(again)
        else:
            say(f"{again['id']} is sent to {again['channel']} again")
        if not served:
            note("No server runs, so nothing is sent yet; start one with `midwatch up`.")

    run(act())
