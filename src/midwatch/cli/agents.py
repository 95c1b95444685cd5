"""Command `agents`: list the agents, test an agent, add an agent."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated

from midwatch.base.errors import InvalidInput
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk, find_remote_server, home_path
from midwatch.cli.options import AsJson
from midwatch.cli.output import clean, format_duration, join, table
from midwatch.cli.parameters import Argument, Option
from midwatch.cli.watch import follow_task

if TYPE_CHECKING:
    from midwatch.wire.agents import AgentInfo

app = Group("List agents and their problems.")


@command(app, default=True, work="test")
async def agents(
    desk: Desk,
    test: Annotated[
        str | None, Option("--test", metavar="NAME", help="Run a short task with this agent and show it.")
    ] = None,
    as_json: AsJson = False,
) -> Reply | int:
    """List agents, how midwatch runs them, and their problems."""
    if test is not None:
        task = await desk.client.test_agent(test)
        return await follow_task(desk, task["id"], as_json)
    found = await desk.client.agents()
    problems = [  # the table cuts a problem, and the remedy is at its end
        clean(f"{agent['name']}: {agent['problem']}") for agent in found if agent.get("problem")
    ]
    idle = None if await desk.has_worker() else NO_SERVER
    rows = [make_row(agent) for agent in found]
    return Reply(
        {"agents": found}, join(table(("NAME", "KIND", "STATE", "SLOTS", "TIMEOUT", "WHAT"), rows), *problems, idle)
    )


NO_SERVER = "No server is running, so no agent works; start one with `midwatch up`."


def make_row(agent: AgentInfo) -> tuple[object, ...]:
    """Return an agent as a row of a table."""
    state = "problem" if agent.get("problem") else "live" if agent["live"] else "-"
    about = (agent.get(name) for name in ("problem", "why", "description", "command", "target"))
    what = next(filter(None, about), "") or ", ".join(capability["name"] for capability in agent["capabilities"])
    timeout = format_duration(agent.get("timeout"))
    return agent["name"], agent.get("kind"), state, agent.get("slots"), timeout, what


@command(app)
async def add(
    name: Annotated[str, Argument(help="Name for the agent: claude, codex, gemini, ...")],
    program: Annotated[
        str | None, Option("--program", help="Known program, if the agent gets another name.", metavar="NAME")
    ] = None,
    way: Annotated[str | None, Option("--way", help="How to run it: acp, headless, terminal or command.")] = None,
) -> Reply:
    """Add a known agent program to midwatch.toml, where you can edit it."""
    from midwatch.agents.profiles import build_section, explain_way, find_program, list_ways
    from midwatch.desk.config import add_agent

    if find_remote_server() is not None:
        raise InvalidInput("an agent can only be added on the machine that runs it; unset MIDWATCH_URL.", field="name")
    profile = find_program(program or name)
    ways = list_ways(profile)
    if way is not None and way not in ways:
        raise InvalidInput(f"{profile.name} cannot run as {way} here; choose --way {' or '.join(ways)}.", field="way")
    section = build_section(profile, way or ways[0])
    file = add_agent(home_path(), name, section)
    text = join(
        f"Added [agents.{name}] with kind {section['kind']} to {file}: {explain_way(profile, section['kind'])}.",
        f"The program is not installed yet: {profile.install}" if shutil.which(profile.name) is None else None,
        f"A running server uses the agent after a restart. Test it with `midwatch agents --test {name}`.",
    )
    return Reply({"file": str(file), "name": name, **section}, text)
