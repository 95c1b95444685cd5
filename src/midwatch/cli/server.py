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

import typer

from midwatch.base.errors import AlreadyRunning, HomeUnusable, MidwatchError, NotRunning
from midwatch.cli.connection import answers, home_path, live_server, run, settings
from midwatch.cli.options import AsJson, Db
from midwatch.cli.output import emit, note, say

if TYPE_CHECKING:
    from midwatch.base.home import Home, ServerInfo
    from midwatch.desk.config import Settings
    from midwatch.runtime.runtime import Runtime

UP_SECONDS = 30.0
DOWN_SECONDS = 30.0
EXIT_SECONDS = 2.0
"""How long the process may take to exit after it has let go of the home."""
LOOK_SECONDS = 0.05
LARGEST_LOG = 10_000_000

Port = Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 takes a free one.", min=0, max=65535)]
Expose = Annotated[bool, typer.Option("--expose", help="Let other machines reach it: listen on all addresses.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")]


def up(
    port: Port = None, db: Db = None, expose: Expose = False, detach: Detach = False, as_json: AsJson = False
) -> None:
    """Start the server: it runs tasks and answers requests until it is stopped."""
    wished = settings(port=port, db=db, expose=expose or None)
    if detach:
        detached(wished, port, db, expose, as_json)
        return
    from midwatch.runtime.serve import serve

    def started(info: ServerInfo, runtime: Runtime) -> None:
        if as_json:
            emit({**shown(info, wished), "home": str(runtime.home.path)})
        else:
            welcome(info, runtime)
        sys.stdout.flush()

    serve(wished, started)


def welcome(info: ServerInfo, runtime: Runtime) -> None:
    """What to do next."""
    ready = [name for name, agent in runtime.agents.items() if not agent.describe().get("problem")]
    say(f"midwatch {info.version} listens on {info.url}, home {runtime.home.path}")
    if runtime.settings.db:
        from midwatch.desk.shared_database import without_password

        say(f"Database: {without_password(runtime.settings.db)}")
    say(f"Agents: {', '.join(sorted(ready)) or 'none'}")
    program = "midwatch" if shutil.which("midwatch") else os.path.relpath(sys.argv[0])
    tell_exposure(info, runtime.settings, program)
    say("Next, in another terminal:")
    say(f'  {program} run "hello" --agent {runtime.settings.default_agent}')
    say(f"  {program} open          the console in the browser")
    say(f"  {program} status        what runs and what needs attention")
    say(f"  {program} events -f     everything as it happens")
    say("Ctrl-C stops the server. Waiting tasks start at the next start; running ones follow their on_crash rule.")


def tell_exposure(info: ServerInfo, wished: Settings, program: str = "midwatch") -> None:
    """Who else can reach the server, and what that means."""
    if places := exposed_at(info, wished):
        say(f"Exposed: others reach it at {', '.join(places)}; `{program} token create` lets one of them in.")
        say("The traffic is not encrypted: put a proxy with TLS in front of it.")


def exposed_at(info: ServerInfo, wished: Settings) -> list[str]:
    """Where other machines find the server."""
    from urllib.parse import urlsplit

    from midwatch.runtime.serve import reached_at

    return reached_at(wished, urlsplit(info.url).port or 0) if wished.expose else []


def shown(info: ServerInfo, wished: Settings) -> dict[str, object]:
    """Where a server is, as JSON."""
    return {"url": info.url, "exposed_at": exposed_at(info, wished), "pid": info.pid, "version": info.version}


def detached(wished: Settings, port: int | None, db: str | None, expose: bool, as_json: bool) -> None:
    """Start the server in the background and wait until it answers."""
    from midwatch.base.home import Home

    home = Home(home_path())
    home.prepare()
    if other := live_server():
        raise AlreadyRunning(
            f"a midwatch server already serves {home.path} (pid {other.pid}, {other.url}); "
            "stop it with `midwatch down`, or set MIDWATCH_HOME."
        )
    begun, child = spawn(home, port, db, expose)
    info = run(awaited(home, child))
    if info is None:
        said = last_line(home.log_file, begun)
        note(said if said.startswith("midwatch: ") else f"midwatch: the server did not start: {said}")
        raise typer.Exit(child.returncode or 1)
    if as_json:
        emit({**shown(info, wished), "home": str(home.path)})
    else:
        say(f"midwatch {info.version} listens on {info.url} (pid {info.pid})")
        tell_exposure(info, wished)
        say(f"Log: {home.log_file}. Stop it with `midwatch down`.")


def spawn(home: Home, port: int | None, db: str | None, expose: bool) -> tuple[int, subprocess.Popen[bytes]]:
    """Start the server as a process of its own; returns where its part of the log begins."""
    command = [sys.executable, "-m", "midwatch.cli.main", "up"]
    env = {**os.environ, "MIDWATCH_DB": db} if db else None  # not an argument: everybody can read those
    if port is not None:
        command += ["--port", str(port)]
    if expose:
        command += ["--expose"]
    try:
        if home.log_file.exists() and home.log_file.stat().st_size > LARGEST_LOG:
            home.log_file.replace(home.log_file.with_suffix(".log.1"))
        with home.log_file.open("ab") as log:
            begun = log.tell()
            child = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    except OSError as problem:
        raise HomeUnusable(f"the log {home.log_file} cannot be written: {problem.strerror}.") from None
    return begun, child


async def awaited(home: Home, child: subprocess.Popen[bytes]) -> ServerInfo | None:
    """The server once it answers, or None when it has ended."""
    from midwatch.client import Client

    deadline = time.monotonic() + UP_SECONDS
    while time.monotonic() < deadline:
        if child.poll() is not None:
            return None
        info = home.server()
        if info is not None and info.pid == child.pid:
            async with Client(info.url, home.token()) as client:
                if await answers(client):
                    return info
        await asyncio.sleep(LOOK_SECONDS)
    raise NotRunning(f"the server (pid {child.pid}) does not answer after {UP_SECONDS:.0f} s; see {home.log_file}.")


def last_line(log: Path, begun: int) -> str:
    """What the server said last."""
    with log.open("rb") as file:
        file.seek(begun)
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"it said nothing; see {log}."


def down(as_json: AsJson = False) -> None:
    """Stop the server. Running tasks are interrupted and go on at its next start."""
    from midwatch.base.home import Home

    home = Home(home_path())
    server = live_server()
    if server is None:
        starting = home.lock("up").taken()
        told = "it is just starting; try again" if starting else "nothing to stop"
        raise NotRunning(f"no midwatch server answers for {home.path}; {told}.")
    try:
        os.kill(server.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended by itself
    except PermissionError:
        raise MidwatchError(f"the server (pid {server.pid}) belongs to another user; stop it as that user.") from None
    if not gone(lambda: home.lock("up").taken(), DOWN_SECONDS):
        raise MidwatchError(f"the server (pid {server.pid}) is still stopping its tasks; see {home.log_file}.")
    gone(lambda: alive(server.pid), EXIT_SECONDS)
    if as_json:
        emit({"stopped": server.pid})
    else:
        say(f"Stopped the server (pid {server.pid}).")


def gone(there: Callable[[], bool], patience: float) -> bool:
    """Wait until something is no longer there; False when that takes too long."""
    deadline = time.monotonic() + patience
    while there():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
