"""Commands of the server: up, down."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from midwatch.base.errors import AlreadyRunning, HomeUnusable, MidwatchError, NotRunning
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import find_server, home_path, is_answering, load_settings
from midwatch.cli.options import AsJson, Db
from midwatch.cli.output import join, note
from midwatch.cli.parameters import Option

if TYPE_CHECKING:
    from midwatch.base.home import Home, ServerInfo
    from midwatch.desk.config import Settings
    from midwatch.runtime.runtime import Runtime

UP_SECONDS = 30.0
DOWN_SECONDS = 30.0
EXIT_SECONDS = 2.0
"""Seconds that the server's process may take to exit after it has released the home."""
POLL_SECONDS = 0.05
MAX_LOG_BYTES = 10_000_000

Port = Annotated[int | None, Option("--port", help="Port to listen on; 0 chooses a free one.", min=0, max=65535)]
Expose = Annotated[bool, Option("--expose", help="Listen on all addresses, so that other machines can connect.")]
Detach = Annotated[bool, Option("--detach", "-d", help="Run in the background.")]


@command()
def up(
    port: Port = None, db: Db = None, expose: Expose = False, detach: Detach = False, as_json: AsJson = False
) -> None:
    """Start the server. It runs tasks and answers requests until it is stopped."""
    settings = load_settings(port=port, db=db, expose=expose or None)
    if detach:
        start_detached(settings, port, db, expose).print(as_json)
        return
    from midwatch.runtime.serve import serve

    def report_start(info: ServerInfo, runtime: Runtime) -> None:
        reply = Reply(describe_server(info, settings, runtime.home), lambda: welcome(info, runtime))
        reply.print(as_json)
        sys.stdout.flush()

    serve(settings, report_start)


def welcome(info: ServerInfo, runtime: Runtime) -> str:
    """Return the text that the server prints at its start: its address, and the next commands to try."""
    from midwatch.desk.shared_database import without_password

    ready = sorted(name for name, agent in runtime.agents.items() if not agent.describe().get("problem"))
    database = runtime.settings.db
    program = "midwatch" if shutil.which("midwatch") else os.path.relpath(sys.argv[0])
    return join(
        f"midwatch {info.version} listens on {info.url}, home {runtime.home.path}",
        f"Database: {without_password(database)}" if database else None,
        f"Agents: {', '.join(ready) or 'none'}",
        describe_exposure(info, runtime.settings, program),
        "Next, in another terminal:",
        f'  {program} run "hello" --agent {runtime.settings.default_agent}',
        f"  {program} open          the console in the browser",
        f"  {program} status        running tasks and what needs attention",
        f"  {program} events -f     all events as they happen",
        "Ctrl-C stops the server. Its next start runs pending tasks; `on_crash` decides about interrupted tasks.",
    )


def describe_exposure(info: ServerInfo, settings: Settings, program: str = "midwatch") -> str | None:
    """Return the addresses for other machines and a warning, or None if the server is not exposed."""
    if not (addresses := find_addresses(info, settings)):
        return None
    return join(
        f"Exposed to other machines at {', '.join(addresses)}; `{program} token create` gives access.",
        "The traffic is not encrypted; put a proxy with TLS in front of the server.",
    )


def find_addresses(info: ServerInfo, settings: Settings) -> list[str]:
    """Return the addresses at which other machines reach the server; none if it is not exposed."""
    from urllib.parse import urlsplit

    from midwatch.runtime.serve import list_addresses

    return list_addresses(settings, urlsplit(info.url).port or 0) if settings.expose else []


def describe_server(info: ServerInfo, settings: Settings, home: Home) -> dict[str, object]:
    """Return the facts about a server as JSON."""
    exposed_at = find_addresses(info, settings)
    return {
        "url": info.url, "exposed_at": exposed_at, "pid": info.pid, "version": info.version, "home": str(home.path),
    }  # fmt: skip


def start_detached(settings: Settings, port: int | None, db: str | None, expose: bool) -> Reply:
    """Start the server in the background and wait until it answers."""
    from midwatch.base.home import Home

    home = Home(home_path())
    home.prepare(settings.owner_access)
    if running := find_server():
        raise AlreadyRunning(
            f"a midwatch server already serves {home.path} (pid {running.pid}, {running.url}); "
            "stop it with `midwatch down`, or set MIDWATCH_HOME."
        )
    log_start, child = spawn(home, port, db, expose)
    info = asyncio.run(wait_for_server(home, child))
    if info is None:
        error = last_line(home.log_file, log_start)
        note(error if error.startswith("midwatch: ") else f"midwatch: the server did not start: {error}")
        raise click.exceptions.Exit(child.returncode or 1)
    text = join(
        f"midwatch {info.version} listens on {info.url} (pid {info.pid})",
        describe_exposure(info, settings),
        f"Log: {home.log_file}. Stop it with `midwatch down`.",
    )
    return Reply(describe_server(info, settings, home), text)


def spawn(home: Home, port: int | None, db: str | None, expose: bool) -> tuple[int, subprocess.Popen[bytes]]:
    """Start the server as a process. Return the position in the log file where its lines begin, and the process."""
    command = [sys.executable, "-m", "midwatch.cli.main", "up"]
    env = {**os.environ, "MIDWATCH_DB": db} if db else None  # not an argument, because all users can read those
    if port is not None:
        command += ["--port", str(port)]
    if expose:
        command += ["--expose"]
    try:
        if home.log_file.exists() and home.log_file.stat().st_size > MAX_LOG_BYTES:
            home.log_file.replace(home.log_file.with_suffix(".log.1"))
        with home.log_file.open("ab") as log:
            log_start = log.tell()
            child = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    except OSError as problem:
        raise HomeUnusable(f"{home.log_file} cannot be written: {problem.strerror}; check its permissions.") from None
    return log_start, child


async def wait_for_server(home: Home, child: subprocess.Popen[bytes]) -> ServerInfo | None:
    """Wait until the server answers. Return None if its process has ended, raise NotRunning after a timeout."""
    from midwatch.client import Client

    deadline = time.monotonic() + UP_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            return None
        info = home.server()
        if info is not None and info.pid == child.pid:
            async with Client(info.url, "none") as client:  # the health needs no token
                if await is_answering(client):
                    return info
        await asyncio.sleep(POLL_SECONDS)
    raise NotRunning(f"the server (pid {child.pid}) does not answer after {UP_SECONDS:.0f} s; see {home.log_file}.")


def last_line(log: Path, start: int) -> str:
    """Return the last line of the log file after the position `start`."""
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"it wrote nothing to {log}; start it without --detach."


@command()
async def down() -> Reply:
    """Stop the server. Running tasks are interrupted, and continue when the server starts again."""
    from midwatch.base.home import Home

    home = Home(home_path())
    server = find_server()
    if server is None:
        advice = "a server is starting; try again" if home.lock("up").is_taken() else "there is nothing to stop"
        raise NotRunning(f"no midwatch server answers for {home.path}; {advice}.")
    try:
        os.kill(server.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended already
    except PermissionError:
        raise MidwatchError(f"the server (pid {server.pid}) belongs to another user; stop it as that user.") from None
    if not await wait_while(lambda: home.lock("up").is_taken(), DOWN_SECONDS):
        raise MidwatchError(f"the server (pid {server.pid}) is still stopping its tasks; see {home.log_file}.")
    await wait_while(lambda: is_alive(server.pid), EXIT_SECONDS)
    return Reply({"stopped": server.pid}, f"Stopped the server (pid {server.pid}).")


async def wait_while(condition: Callable[[], bool], patience: float) -> bool:
    """Wait while a condition is true. Return False if it is still true after `patience` seconds."""
    deadline = time.monotonic() + patience
    while condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
