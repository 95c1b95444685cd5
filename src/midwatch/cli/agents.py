"""Command `agents`: who can do the work, whether one does, and how to add one."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from midwatch.base.errors import InvalidInput
from midwatch.cli.connection import connect, elsewhere, home_path, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import clean, emit, say, span, table

app = typer.Typer(help="List agents, and what keeps one from working.", invoke_without_command=True)


@app.callback()
def agents(
    ctx: typer.Context,
    test: Annotated[
        str | None, typer.Option("--test", metavar="NAME", help="Give this one a short task; exit 0 if it answers.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List agents, how each is driven, and what keeps one from working."""
    if ctx.invoked_subcommand is not None:
        return
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
            about = (agent.get(what) for what in ("problem", "why", "description", "command", "target"))
            told = next(filter(None, about), "") or ", ".join(one["name"] for one in agent["capabilities"])
            row = (agent["name"], agent.get("kind"), state, agent.get("slots"), span(agent.get("timeout")))
            rows.append((*row, told))
        table(("NAME", "KIND", "STATE", "SLOTS", "TIMEOUT", "WHAT"), rows)
        for agent in found:
            if problem := agent.get("problem"):  # the table has only its beginning, and the remedy is at its end
                say(clean(f"{agent['name']}: {problem}"))
        if not served:
            say("No server runs, so none of them is at work; start one with `midwatch up`.")

    run(act())


async def tried(name: str, as_json: bool) -> int:
    """Have an agent do a short task, and see how it ends. Without a server it does it in this process."""
    from midwatch.cli.run import to_its_end

    async with connect(work=True) as desk:
        task = await desk.client.test_agent(name)
        return await to_its_end(desk, task["id"], as_json)


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What it is to be called: claude, codex, gemini, ...")],
    program: Annotated[
        str | None, typer.Option("--program", help="The known program, where NAME is another.", metavar="NAME")
    ] = None,
    way: Annotated[
        str | None, typer.Option("--way", help="acp, headless, terminal or command; default: the best.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a known agent program to midwatch.toml, so that it can be changed there."""
    from midwatch.agents.profiles import build_section, explain_way, find_program, list_ways
    from midwatch.desk.config import add_agent

    if elsewhere() is not None:
        raise InvalidInput("agents are added on the machine that runs them; unset MIDWATCH_URL.", field="name")
    known = find_program(program or name)
    ways = list_ways(known)
    if way is not None and way not in ways:
        raise InvalidInput(f"{known.name} can be driven by {', '.join(ways)} here, not by {way}.", field="way")
    section = build_section(known, way or ways[0])
    file = add_agent(home_path(), name, section)
    if as_json:
        emit({"file": str(file), "name": name, **section})
        return
    say(f"Added [agents.{name}] with kind {section['kind']} to {file}: {explain_way(known, section['kind'])}.")
    if shutil.which(known.name) is None:
        say(f"It is not installed yet: {known.install}")
    say(f"A server that runs uses it from its next start. Try it with `midwatch agents --test {name}`.")
