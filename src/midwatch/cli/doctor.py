"""Command `doctor`: check everything that midwatch needs, and suggest how to repair problems."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from midwatch.base.errors import BadConfig, MidwatchError
from midwatch.base.home import ROOT_REMEDY, RUNS_AS_ROOT
from midwatch.base.version import __version__
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import check_same_database, find_server, home_path, is_answering
from midwatch.cli.output import format_age, format_duration, paint_status, shorten

if TYPE_CHECKING:
    from midwatch.base.home import Home
    from midwatch.desk.config import Settings
    from midwatch.runtime.runtime import Runtime
    from midwatch.wire.alerts import RoutineInfo

LOW_SPACE, NO_SPACE = 1_000_000_000, 50_000_000
MOST_SKEW = 1.0
"""Seconds by which this machine's clock may differ from the database's clock."""
SECRET_NAME = re.compile(
    r"(?i)^channels\..*\.urls?$|^ping_url$"
    r"|(secret|token|passw|credential|authorization|cookie|api_?key|[._-]key)\w*(?<!_env)$"
)
"""Names of settings with secrets: addresses of channels, and names such as `secret` or `API_KEY`, not `api_key_env`."""
SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")
"""An address with a password."""
DRIFT_DAYS = 7
MOST_FAILURES = 500
RESTART = "restart it: `midwatch down`, then `midwatch up`"


class Finding(NamedTuple):
    """The result of one check. `remedy` explains what to do if the check failed."""

    state: Literal["ok", "warn", "bad"]
    what: str
    told: str
    remedy: str | None = None


@command()
async def doctor() -> Reply:
    """Check the installation. The exit status is 1 if something is broken."""
    findings = [finding async for finding in examine()]
    broken = any(finding.state == "bad" for finding in findings)
    checks = [finding._asdict() for finding in findings]
    return Reply({"ok": not broken, "checks": checks}, "\n".join(map(describe, findings)), status=int(broken))


def describe(finding: Finding) -> str:
    """Return a finding as one line of text."""
    remedy = f" → {finding.remedy}" if finding.remedy else ""
    return f"{paint_status(finding.state.ljust(4), finding.state)}  {finding.what}: {finding.told}{remedy}"


async def examine() -> AsyncIterator[Finding]:
    """Run all checks that are possible here, and yield their results."""
    from midwatch.base.home import Home
    from midwatch.desk.config import Settings

    home = Home(home_path())
    owner_access = "file"
    with suppress(MidwatchError):  # wrong settings are reported below
        owner_access = Settings.load(home.path).owner_access
    try:
        home.prepare(owner_access)
    except MidwatchError as problem:
        yield Finding("bad", "home", str(problem), "set MIDWATCH_HOME to a writable directory")
        return
    yield Finding("ok", "home", str(home.path))
    yield check_disk(home)
    yield check_token(home)
    if os.geteuid() == 0:
        yield Finding("warn", "user", RUNS_AS_ROOT, ROOT_REMEDY)
    for finding in check_permissions(home):
        yield finding
    async for finding in check_server(home):
        yield finding
    try:
        settings = Settings.load(home.path)
    except MidwatchError as problem:
        yield Finding("bad", "configuration", str(problem), "correct this line")
        return
    yield check_configuration(home, settings)
    for finding in check_cgroups(settings):
        yield finding
    try:
        await check_same_database(settings)
    except BadConfig as problem:
        yield Finding("bad", "configuration", str(problem))
    async for finding in check_runtime():
        yield finding
    for finding in await check_alerts():
        yield finding


def check_disk(home: Home) -> Finding:
    """Check that the disk has free space."""
    free = shutil.disk_usage(home.path).free
    text = f"{free / 1e9:.1f} GB free"
    if free < NO_SPACE:
        return Finding("bad", "disk", text, "free some disk space now, or tasks cannot be stored")
    if free < LOW_SPACE:
        return Finding("warn", "disk", text, "free some disk space soon")
    return Finding("ok", "disk", text)


def check_token(home: Home) -> Finding:
    """Check that only the owner of the token file can read it."""
    if not home.token_file.exists():
        return Finding("ok", "token", f"no file; the server gives it out at {home.owner_socket}")
    mode = stat.S_IMODE(home.token_file.stat().st_mode)
    if mode & 0o077:
        return Finding("bad", "token", f"{home.token_file} has mode {mode:o}", f"chmod 600 {home.token_file}")
    return Finding("ok", "token", f"{home.token_file}, readable by its owner only")


def check_permissions(home: Home) -> Iterator[Finding]:
    """Check that other users can read neither the home and its database nor settings that contain secrets."""
    private = [home.path, *home.path.glob(f"{home.database.name}*"), *home.path.glob("*.db"), *home.path.glob(".env*")]
    reasons = dict.fromkeys(private, "other users can read it")
    settings = home.path / "midwatch.toml"
    if secrets := find_secrets(settings):
        reasons[settings] = f"other users can read it, and it contains {secrets[0]}"
    for path, reason in reasons.items():
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            remedy = f"chmod {'700' if path.is_dir() else '600'} {shlex.quote(str(path))}"
            yield Finding("warn", "permissions", f"{path} has mode {mode:o}: {reason}", remedy)


def find_secrets(settings: Path) -> list[str]:
    """Return the names of the settings in a file that look like secrets."""
    try:
        table = tomllib.loads(settings.read_text())
    except (OSError, ValueError):
        return []  # it does not exist, or another check reports its problem
    return [name for name, value in flatten(table) if SECRET_NAME.search(name) or SECRET_VALUE.search(value)]


def flatten(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the full names and values of all texts in a table of settings."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from flatten(item, name)


async def check_server(home: Home) -> AsyncIterator[Finding]:
    """Check that a server runs, answers and has this version, and that its routines succeed."""
    from midwatch.client import Client

    server = find_server()
    if server is None and home.lock("up").is_taken():
        yield Finding("warn", "server", "a server is starting", "run `midwatch doctor` again in a moment")
    elif server is None:
        yield Finding("warn", "server", "not running", "start it with `midwatch up`")
    if server is None:
        return
    where = f"pid {server.pid} at {server.url}"
    try:
        connection = Client.for_home(home.path)
    except MidwatchError as problem:
        yield Finding("bad", "server", str(problem), RESTART)
        return
    async with connection as client:
        if not await is_answering(client):
            yield Finding("bad", "server", f"{where} does not answer", f"see {home.log_file}")
            return
        try:
            await client.summary()
        except MidwatchError as problem:
            yield Finding("bad", "server", str(problem), RESTART)
            return
        try:
            await client.ready()
        except MidwatchError as problem:
            yield Finding("bad", "server", f"{where} accepts no tasks: {problem}")
        if server.version != __version__:
            text = f"pid {server.pid} runs version {server.version}, this is {__version__}"
            yield Finding("warn", "server", text, RESTART)
        else:
            yield Finding("ok", "server", f"{server.url}, pid {server.pid}, version {server.version}")
        with suppress(MidwatchError):  # a server of another version may not report its routines
            for routine in await client.routines():
                yield check_routine(routine, home)


def check_routine(routine: RoutineInfo, home: Home) -> Finding:
    """Check that a routine of the server, which is background work at intervals, succeeds."""
    name, error = f"routine {routine['name']}", routine["last_error"]
    text = f"every {format_duration(routine['seconds'])}, {routine['runs']} times, {routine['failures']} failed"
    if routine["last_at"]:
        result = routine.get("last_result")
        text += f", last {format_age(routine['last_at'])} ago" + (f": {result}" if result and not error else "")
    return Finding("warn", name, f"{text}; {error}", f"see {home.log_file}") if error else Finding("ok", name, text)


def check_configuration(home: Home, settings: Settings) -> Finding:
    """Return a finding with the source of the settings, and the number of agents and channels."""
    file = home.path / "midwatch.toml"
    text = f"{file}" if file.exists() else f"defaults; {file} does not exist"
    return Finding("ok", "configuration", f"{text}; {len(settings.agents)} agents, {len(settings.channels)} channels")


def check_cgroups(settings: Settings) -> list[Finding]:
    """Check whether cgroups end and limit the programs of agents; if a server runs, in the cgroup of the server."""
    from midwatch.programs.cgroup import CONTROLLERS, Unusable, find_limit_problem, find_own, find_usable

    server = find_server()
    pid = server.pid if server is not None else os.getpid()
    problems: dict[str, str | None] = {}
    try:
        own = find_usable(find_own(pid))
        problems = {name: find_limit_problem(own, name, pid) for name in CONTROLLERS}
        able = [name for name, why in problems.items() if why is None]
        text = f"they end all programs of a task in {own}; limits that can be set: {', '.join(able) or 'none'}"
    except (Unusable, OSError) as problem:
        problems = dict.fromkeys(CONTROLLERS, str(problem))
        text = f"not used: {problem}"
    findings = [Finding("ok", "cgroups", text)]
    for name, agent in sorted(settings.agents.items()):
        for controller, why in problems.items():
            if getattr(agent, controller) is not None and why is not None:
                findings.append(Finding("bad", f"agent {name}", f"its limit {controller} cannot be set", why))
    return findings


async def check_runtime() -> AsyncIterator[Finding]:
    """Check the database, the agents, the channels and the processes."""
    from midwatch.runtime.runtime import Runtime

    try:
        async with Runtime.open(home_path(), work=False) as runtime:
            async for finding in check_database(runtime):
                yield finding
            for finding in check_agents(runtime):
                yield finding
            for finding in await check_drift(runtime):
                yield finding
            for name, channel in sorted(runtime.settings.channels.items()):
                yield Finding("ok", f"channel {name}", channel.kind)
            for finding in await check_processes(runtime):
                yield finding
    except BadConfig as problem:
        yield Finding("bad", "configuration", str(problem))
    except MidwatchError as problem:
        yield Finding("bad", "database", str(problem))


async def check_alerts() -> list[Finding]:
    """Return the alerts that `midwatch status` lists, from the server if it answers."""
    from midwatch.cli.connection import connect

    try:
        async with connect() as desk:
            alerts = await desk.client.alerts()
    except MidwatchError as problem:
        return [Finding("bad", "alerts", str(problem))]
    findings = []
    for alert in alerts:
        known = f" (acknowledged by {alert['acknowledged_by']})" if alert["status"] == "acknowledged" else ""
        text = shorten(alert["text"].replace("\n", ": "), 300)
        remedy = f"midwatch watchdog ack {alert['id']}" if alert["status"] in ("raised", "escalated") else None
        findings.append(Finding("warn", f"{alert['alert']} {alert['subject']}", f"{text}{known}", remedy))
    return findings


async def check_processes(runtime: Runtime) -> list[Finding]:
    """Check that the processes that run tasks are alive and, on a shared database, that there is a leader."""
    from midwatch.desk.processes import list_processes

    processes = await list_processes(runtime)
    findings = [check_process(process) for process in processes]
    if not runtime.settings.db:
        return findings
    leader = next((process["id"] for process in processes if process["leader"]), None)
    if leader:
        findings.append(Finding("ok", "leader", leader))
    elif any(process["live"] for process in processes):
        remedy = "run `midwatch doctor` again in a few seconds; if it is still so, read the log files"
        findings.append(Finding("warn", "leader", "there is no leader", remedy))
    else:
        remedy = "start `midwatch up`, or `midwatch worker` on any machine"
        findings.append(Finding("warn", "leader", "no process runs tasks", remedy))
    return findings


def check_process(process: dict[str, Any]) -> Finding:
    """Check that a process that runs tasks is alive."""
    name = f"process {process['id']}"
    where = f"{process['role']}, pid {process['pid']} on {process['host']}"
    text = f"{where}, {process['slots']} slots, {process['running']} running"
    if process["heartbeat_age"] is not None:
        text += f", heartbeat {format_duration(process['heartbeat_age'])} ago"
    if process["live"]:
        return Finding("ok", name, text)
    return Finding("warn", name, f"{text}; it has ended", "the leader or the next server continues its tasks")


async def check_database(runtime: Runtime) -> AsyncIterator[Finding]:
    """Check that the database is sound."""
    facts = await runtime.store.describe()
    if runtime.settings.db:
        async for finding in check_shared_database(runtime, facts):
            yield finding
    else:
        yield Finding("ok", "database", ", ".join(f"{name} {value}" for name, value in facts.items()))
        if not facts["shrinks"]:
            remedy = "to change this, stop all processes, then `midwatch backup FILE`, `midwatch restore FILE --force`"
            yield Finding("ok", "database", "its file does not shrink when records are removed", remedy)
    for problem in await runtime.store.check():
        yield Finding("bad", "database", problem, "back up the database before you do anything else")


async def check_shared_database(runtime: Runtime, facts: dict[str, object]) -> AsyncIterator[Finding]:
    """Check a PostgreSQL database: version, latency, durable commits, and the difference between the clocks."""
    from midwatch.desk.shared_database import compare_clocks

    clock = await compare_clocks(runtime)
    major, minor = divmod(int(str(facts["server"])), 10_000)
    size = int(str(facts["bytes"])) / 1e6
    text = f"PostgreSQL {major}.{minor} at {facts['path']}, schema {facts['schema']}, {size:.1f} MB"
    yield Finding("ok", "database", f"{text}, answers in {clock.round_trip * 1000:.1f} ms")
    if facts["synchronous"] == "off":
        remedy = "set synchronous_commit = on for this database"
        yield Finding("warn", "durability", "synchronous_commit is off: a crash may lose accepted tasks", remedy)
    skew = f"this machine's clock is {abs(clock.ahead):.3f} s {'behind' if clock.ahead > 0 else 'ahead'}"
    if abs(clock.ahead) > MOST_SKEW + clock.round_trip / 2:
        remedy = "set the clocks of all machines with NTP; until then times are wrong by this difference"
        yield Finding("warn", "clock", skew, remedy)
    else:
        yield Finding("ok", "clock", skew)


def check_agents(runtime: Runtime) -> list[Finding]:
    """Check which agents can run here."""
    findings = []
    for name, agent in sorted(runtime.agents.items()):
        facts = agent.describe()
        if problem := facts.get("problem"):
            state: Literal["warn", "bad"] = "bad" if name in runtime.settings.agents else "warn"
            remedy = f"correct [agents.{name}] in midwatch.toml"
            findings.append(Finding(state, f"agent {name}", str(problem), remedy))
        else:
            text = facts.get("command") or facts.get("target") or agent.description or agent.kind
            findings.append(Finding("ok", f"agent {name}", f"{agent.kind}, {text}"))
            findings.extend(check_version(name, facts))
    return findings or [Finding("warn", "agents", "no agents", "add one under [agents.NAME] in midwatch.toml")]


def check_version(name: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that midwatch was tested with the installed version of an agent's program."""
    from midwatch.agents.streams.drift import Versions

    if "version" not in facts or "tested_versions" not in facts:
        return
    tested = Versions(*facts["tested_versions"])
    if place := tested.place(facts["version"]):
        edge = tested.newest if place == "newer" else tested.oldest
        text = f"version {facts['version']} is {place} than {edge}, the {place[:-2]}est tested one"
        remedy = "if its stream is not understood, update midwatch or install a tested version; otherwise nothing"
        yield Finding("warn", f"agent {name}", text, remedy)


async def check_drift(runtime: Runtime) -> list[Finding]:
    """Check that the streams of all agents were understood in the last days. A later success makes it a warning."""
    from midwatch.agents.streams.drift import MARK
    from midwatch.base.clock import SECOND
    from midwatch.domain.task_store import TaskFilter

    since = runtime.clock.now() - int(DRIFT_DAYS * 86400 * SECOND)
    failed = await runtime.store.list_tasks(TaskFilter(statuses=("failed",), limit=MOST_FAILURES))
    misread = [task for task in failed if task.created_at >= since and MARK in (task.error or "")]
    findings = []
    for name in sorted({task.agent for task in misread}):
        tasks = [task for task in misread if task.agent == name]
        done = await runtime.store.list_tasks(TaskFilter(statuses=("done",), agent=name, limit=1))
        state: Literal["warn", "bad"] = "warn" if done and done[0].id > tasks[0].id else "bad"
        count = "1 of its turns was" if len(tasks) == 1 else f"{len(tasks)} of its turns were"
        text = f"{count} not understood in the last {DRIFT_DAYS} days, the last: {tasks[0].id}"
        remedy = f"update midwatch, or install the version that `midwatch show {tasks[0].id}` names"
        findings.append(Finding(state, f"agent {name}", text, remedy))
    return findings
