"""Command `agents`: who can do the work, and whether one does."""

from __future__ import annotations

from typing import Annotated

import typer

from midwatch.cli.desk import connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, line, say, span, table

COMMAND_SHOWN = 70


def agents(
    test: Annotated[
        str | None, typer.Option("--test", metavar="NAME", help="Give this one a short task; exit 0 if it answers.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List agents, and what keeps one from working."""
    if test is not None:
        raise typer.Exit(run(tried(test, as_json)))

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.agents()
            served = await desk.served()
        if as_json:
            emit({"agents": found})
            return
        rows = []
        for agent in found:
            state = "problem" if agent.get("problem") else "live" if agent["live"] else "-"
            told = agent.get("problem") or agent.get("description") or agent.get("command") or agent.get("target")
            row = (agent["name"], agent.get("kind"), state, agent.get("slots"), span(agent.get("timeout")))
            rows.append((*row, line(told, COMMAND_SHOWN)))
        table(("NAME", "KIND", "STATE", "SLOTS", "TIMEOUT", "WHAT"), rows)
        if not served:
            say("No server runs, so none of them is at work; start one with `midwatch up`.")

    run(act())


async def tried(name: str, as_json: bool) -> int:
    """Have an agent do a short task, and see how it ends. Without a server it does it in this process."""
    from midwatch.cli.run import to_its_end

    async with connect(work=True) as desk:
        task = await desk.client.test_agent(name)
        return await to_its_end(desk, task["id"], as_json)
