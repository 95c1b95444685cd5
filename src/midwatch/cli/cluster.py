"""Command `cluster`: which processes run tasks."""

from __future__ import annotations

from midwatch.cli.connection import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, line, say, span, table

AGENTS_SHOWN = 40
HEAD = ("ID", "ROLE", "HOST", "PID", "STATE", "HEARTBEAT", "RUNNING", "AGENTS")


def cluster(as_json: AsJson = False) -> None:
    """List the processes that run tasks: where they are, what they offer, who leads."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.cluster()
        if as_json:
            emit(found)
            return
        rows = []
        for one in found["processes"]:
            state = "dead" if not one["live"] else "leader" if one["leader"] else "live"
            beat = "by lock" if one["heartbeat_age"] is None else f"{span(one['heartbeat_age'])} ago"
            load = f"{one['running']}/{one['slots']}"
            agents = line(", ".join(one["agents"]) or None, AGENTS_SHOWN)
            rows.append((one["id"], one["role"], one["host"], one["pid"], state, beat, load, agents))
        if rows:
            table(HEAD, rows)
        else:
            say("No process runs tasks; start one with `midwatch up`.")

    run(act())
