"""Command `cluster`: list the processes that run tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.output import format_duration, shorten, table, values

if TYPE_CHECKING:
    from midwatch.wire.system import ProcessInfo

AGENTS_LENGTH = 40
HEADERS = ("ID", "ROLE", "HOST", "PID", "STATE", "HEARTBEAT", "RUNNING", "AGENTS")


@command()
async def cluster(desk: Desk) -> Reply:
    """List the processes that run tasks: host, agents, load and leader."""
    reply = await desk.client.cluster()
    rows = [make_row(process) for process in reply["processes"]]
    return Reply(reply, table(HEADERS, rows, "No process runs tasks; start a server with `midwatch up`."))


def make_row(process: ProcessInfo) -> tuple[object, ...]:
    """Return a process as a row of a table."""
    state = "dead" if not process["live"] else "leader" if process["leader"] else "live"
    age = process["heartbeat_age"]
    heartbeat = "by lock" if age is None else f"{format_duration(age)} ago"
    load = f"{process['running']}/{process['slots']}"
    agents = shorten(", ".join(process["agents"]) or None, AGENTS_LENGTH)
    return (*values(process, "id", "role", "host", "pid"), state, heartbeat, load, agents)
