"""Command `watchdog`: look for what is overdue, stuck or silent, now."""

from __future__ import annotations

from midwatch.cli.connection import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, local, say


def watchdog(as_json: AsJson = False) -> None:
    """Look for work that is overdue, stuck or silent, and tell of it like the server does once a minute."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.watchdog()
        if as_json:
            emit(found)
            return
        for one in found["told"]:
            say(f"{one['text']}\n  since {local(one['since'])}")
        for one in found["known"]:
            say(f"{one['text']}\n  since {local(one['since'])}, told before")
        if not found["told"] and not found["known"]:
            say("Nothing is overdue, stuck or silent.")

    run(act())
