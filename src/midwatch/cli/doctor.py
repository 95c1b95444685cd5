"""Command `doctor`: looks at everything a desk needs, and says what to do about what is wrong."""

from __future__ import annotations

import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from midwatch import __version__
from midwatch.cli.desk import answers, home_path, live_server, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import STATUS_COLOUR, emit, paint, say
from midwatch.errors import BadConfig, MidwatchError

if TYPE_CHECKING:
    from midwatch.config import Settings
    from midwatch.engine import Instance
    from midwatch.home import Home
    from midwatch.runtime import Runtime

LOW_SPACE, NO_SPACE = 1_000_000_000, 50_000_000


class Finding(NamedTuple):
    """One thing that was looked at. `remedy` says what to do unless it is ok."""

    state: Literal["ok", "warn", "bad"]
    what: str
    told: str
    remedy: str | None = None


def doctor(as_json: AsJson = False) -> None:
    """Check the installation. Exit status 1 when something is broken."""

    async def act() -> list[Finding]:
        return [finding async for finding in examine()]

    findings = run(act())
    broken = any(finding.state == "bad" for finding in findings)
    if as_json:
        emit({"ok": not broken, "checks": [finding._asdict() for finding in findings]})
    else:
        for finding in findings:
            remedy = f" → {finding.remedy}" if finding.remedy else ""
            say(
                f"{paint(finding.state.ljust(4), STATUS_COLOUR[finding.state])}  {finding.what}: {finding.told}{remedy}"
            )
    raise typer.Exit(1 if broken else 0)


async def examine() -> AsyncIterator[Finding]:
    """Everything there is to look at, as far as one gets."""
    from midwatch.config import Settings
    from midwatch.home import Home

    home = Home(home_path())
    try:
        home.prepare()
    except MidwatchError as problem:
        yield Finding("bad", "home", str(problem), "set MIDWATCH_HOME to a directory you can write")
        return
    yield Finding("ok", "home", str(home.path))
    yield disk(home)
    yield token(home)
    yield await server(home)
    try:
        settings = Settings.load(home.path)
    except MidwatchError as problem:
        yield Finding("bad", "configuration", str(problem), "correct that line")
        return
    yield configuration(home, settings)
    async for finding in inside():
        yield finding


def disk(home: Home) -> Finding:
    """Whether there is room to write."""
    free = shutil.disk_usage(home.path).free
    told = f"{free / 1e9:.1f} GB free"
    if free < NO_SPACE:
        return Finding("bad", "disk", told, "free some space; tasks cannot be stored")
    if free < LOW_SPACE:
        return Finding("warn", "disk", told, "free some space soon")
    return Finding("ok", "disk", told)


def token(home: Home) -> Finding:
    """Whether the token is for its owner's eyes only."""
    mode = stat.S_IMODE(home.token_file.stat().st_mode)
    if mode & 0o077:
        return Finding("bad", "token", f"{home.token_file} has mode {mode:o}", f"chmod 600 {home.token_file}")
    return Finding("ok", "token", f"{home.token_file}, readable by its owner only")


async def server(home: Home) -> Finding:
    """Whether a server lives, answers, and is of this version."""
    from midwatch.client import Client

    live = live_server()
    if live is None:
        if home.lock("up").taken():
            return Finding("warn", "server", "it is just starting", "look again in a moment")
        return Finding("warn", "server", "none runs", "start it with `midwatch up`")
    async with Client(live.url, home.token()) as client:
        if not await answers(client):
            return Finding("bad", "server", f"pid {live.pid} at {live.url} does not answer", f"see {home.log_file}")
        try:
            await client.summary()
        except MidwatchError as problem:
            return Finding("bad", "server", str(problem), "restart it: `midwatch down`, then `midwatch up`")
    if live.version != __version__:
        told = f"pid {live.pid} runs version {live.version}, this is {__version__}"
        return Finding("warn", "server", told, "restart it: `midwatch down`, then `midwatch up`")
    return Finding("ok", "server", f"{live.url}, pid {live.pid}, version {live.version}")


def configuration(home: Home, settings: Settings) -> Finding:
    """Which settings are in use."""
    file = home.path / "midwatch.toml"
    told = f"{file}" if file.exists() else f"defaults; {file} does not exist"
    return Finding("ok", "configuration", f"{told}; {len(settings.agents)} agents, {len(settings.channels)} channels")


async def inside() -> AsyncIterator[Finding]:
    """The database, the agents, the channels and the processes."""
    from midwatch.runtime import Runtime

    try:
        async with Runtime.open(home_path(), work=False) as runtime:
            async for finding in database(runtime):
                yield finding
            for finding in agents(runtime):
                yield finding
            for name, channel in sorted(runtime.settings.channels.items()):
                yield Finding("ok", f"channel {name}", channel.kind)
            for instance in await runtime.store.list_instances():
                yield process(runtime.home, instance)
    except BadConfig as problem:
        yield Finding("bad", "configuration", str(problem))
    except MidwatchError as problem:
        yield Finding("bad", "database", str(problem))


def process(home: Home, instance: Instance) -> Finding:
    """Whether a process that runs tasks still lives."""
    told = f"{instance.role}, pid {instance.pid} on {instance.host}, {instance.slots} slots"
    if home.lock(instance.id).taken():
        return Finding("ok", f"process {instance.id}", told)
    return Finding("warn", f"process {instance.id}", f"{told}; it has ended", "the next server takes over its tasks")


async def database(runtime: Runtime) -> AsyncIterator[Finding]:
    """Whether the database is sound."""
    facts = await runtime.store.describe()
    yield Finding("ok", "database", ", ".join(f"{name} {value}" for name, value in facts.items()))
    for problem in await runtime.store.check():
        yield Finding("bad", "database", problem, f"copy {Path(runtime.home.path)} aside before anything else")


def agents(runtime: Runtime) -> list[Finding]:
    """Which agents can work here."""
    found = []
    for name, agent in sorted(runtime.agents.items()):
        facts = agent.describe()
        problem = facts.get("problem")
        if problem:
            configured = name in runtime.settings.agents
            remedy = f"correct [agents.{name}] in midwatch.toml"
            found.append(Finding("bad" if configured else "warn", f"agent {name}", str(problem), remedy))
        else:
            told = facts.get("command") or facts.get("target") or agent.capability.description or agent.kind
            found.append(Finding("ok", f"agent {name}", f"{agent.kind}, {told}"))
    return found or [Finding("warn", "agents", "there is none", "add one under [agents.NAME] in midwatch.toml")]
