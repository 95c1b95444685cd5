"""Command `doctor`: looks at everything a desk needs, and says what to do about what is wrong."""

from __future__ import annotations

import shutil
import stat
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.base.version import __version__
from midwatch.cli.connection import answers, check_same_database, home_path, live_server, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import STATUS_COLOUR, emit, paint, say, span

if TYPE_CHECKING:
    from midwatch.base.home import Home
    from midwatch.desk.config import Settings
    from midwatch.runtime.runtime import Runtime

LOW_SPACE, NO_SPACE = 1_000_000_000, 50_000_000
MOST_SKEW = 1.0
"""Seconds by which this machine's clock may differ from the database's."""


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
    from midwatch.base.home import Home
    from midwatch.desk.config import Settings

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
    async for finding in routines(home):
        yield finding
    try:
        settings = Settings.load(home.path)
    except MidwatchError as problem:
        yield Finding("bad", "configuration", str(problem), "correct that line")
        return
    yield configuration(home, settings)
    try:
        await check_same_database(settings)
    except BadConfig as problem:
        yield Finding("bad", "configuration", str(problem))
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


async def routines(home: Home) -> AsyncIterator[Finding]:
    """How the server's own work at intervals goes."""
    from midwatch.client import Client

    live = live_server()
    if live is None:
        return
    async with Client(live.url, home.token()) as client:
        try:
            found = await client.routines()
        except MidwatchError:
            return  # that it does not answer was said already
    for one in found:
        told = f"every {span(one['seconds'])}, {one['runs']} times, {one['failures']} failed"
        if one["last_error"]:
            yield Finding("warn", f"routine {one['name']}", f"{told}; {one['last_error']}", f"see {home.log_file}")
        else:
            yield Finding("ok", f"routine {one['name']}", told)


def configuration(home: Home, settings: Settings) -> Finding:
    """Which settings are in use."""
    file = home.path / "midwatch.toml"
    told = f"{file}" if file.exists() else f"defaults; {file} does not exist"
    return Finding("ok", "configuration", f"{told}; {len(settings.agents)} agents, {len(settings.channels)} channels")


async def inside() -> AsyncIterator[Finding]:
    """The database, the agents, the channels and the processes."""
    from midwatch.runtime.runtime import Runtime

    try:
        async with Runtime.open(home_path(), work=False) as runtime:
            async for finding in database(runtime):
                yield finding
            for finding in agents(runtime):
                yield finding
            for name, channel in sorted(runtime.settings.channels.items()):
                yield Finding("ok", f"channel {name}", channel.kind)
            for finding in await processes(runtime):
                yield finding
            for alert in await runtime.alerts.look():
                yield Finding("warn", f"{alert.kind} {alert.subject}", alert.text.replace("\n", ": "))
    except BadConfig as problem:
        yield Finding("bad", "configuration", str(problem))
    except MidwatchError as problem:
        yield Finding("bad", "database", str(problem))


async def processes(runtime: Runtime) -> list[Finding]:
    """Whether the processes that run tasks still live, and on a shared database whether one leads."""
    from midwatch.desk.processes import list_processes

    found = await list_processes(runtime)
    if not runtime.settings.db:
        return [process(one) for one in found]
    leader = next((one["id"] for one in found if one["leader"]), None)
    if leader:
        led = Finding("ok", "leader", leader)
    elif any(one["live"] for one in found):
        led = Finding("warn", "leader", "nobody leads", "look again in a few seconds; then look at the logs")
    else:
        led = Finding("warn", "leader", "no process runs tasks", "start `midwatch up`, or `midwatch worker` anywhere")
    return [*(process(one) for one in found), led]


def process(one: dict[str, Any]) -> Finding:
    """Whether a process that runs tasks still lives."""
    told = f"{one['role']}, pid {one['pid']} on {one['host']}, {one['slots']} slots, {one['running']} running"
    if one["heartbeat_age"] is not None:
        told += f", heartbeat {span(one['heartbeat_age'])} ago"
    if one["live"]:
        return Finding("ok", f"process {one['id']}", told)
    return Finding("warn", f"process {one['id']}", f"{told}; it has ended", "the leader or next server takes its tasks")


async def database(runtime: Runtime) -> AsyncIterator[Finding]:
    """Whether the database is sound."""
    facts = await runtime.store.describe()
    if runtime.settings.db:
        async for finding in shared_database(runtime, facts):
            yield finding
    else:
        yield Finding("ok", "database", ", ".join(f"{name} {value}" for name, value in facts.items()))
    for problem in await runtime.store.check():
        yield Finding("bad", "database", problem, "make a backup of what there is before anything else")


async def shared_database(runtime: Runtime, facts: dict[str, object]) -> AsyncIterator[Finding]:
    """Which PostgreSQL it is, how far away, whether it keeps what it accepts, and whether the clocks agree."""
    from midwatch.desk.shared_database import compare_clocks

    clock = await compare_clocks(runtime)
    major, minor = divmod(int(str(facts["server"])), 10_000)
    size = int(str(facts["bytes"])) / 1e6
    told = f"PostgreSQL {major}.{minor} at {facts['path']}, schema {facts['schema']}, {size:.1f} MB"
    yield Finding("ok", "database", f"{told}, answers in {clock.round_trip * 1000:.1f} ms")
    if facts["synchronous"] == "off":
        remedy = "set synchronous_commit = on for this database"
        yield Finding("warn", "durability", "synchronous_commit is off: a crash may lose accepted tasks", remedy)
    apart = f"this machine's clock is {abs(clock.ahead):.3f} s {'behind' if clock.ahead > 0 else 'ahead'}"
    if abs(clock.ahead) > MOST_SKEW + clock.round_trip / 2:
        yield Finding(
            "warn", "clock", apart, "let NTP set the clocks of all machines; delays and ages are wrong by this"
        )
    else:
        yield Finding("ok", "clock", apart)


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
            told = facts.get("command") or facts.get("target") or agent.description or agent.kind
            found.append(Finding("ok", f"agent {name}", f"{agent.kind}, {told}"))
    return found or [Finding("warn", "agents", "there is none", "add one under [agents.NAME] in midwatch.toml")]
