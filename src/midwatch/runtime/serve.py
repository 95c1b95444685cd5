"""The server: answers HTTP requests for one runtime on one listening socket, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable

import uvloop

from midwatch.api.protocol import Limits
from midwatch.api.server import EVERYWHERE, Server, format_url, listen, local_url
from midwatch.base.home import ROOT_REMEDY, RUNS_AS_ROOT, Home, ServerInfo
from midwatch.base.text import escape_controls
from midwatch.base.version import __version__
from midwatch.desk.config import Settings
from midwatch.programs.egress import MOST_IN_ALL
from midwatch.runtime.loop_monitor import LoopMonitor
from midwatch.runtime.owner_socket import OwnerSocket
from midwatch.runtime.runtime import Runtime

FILES = 256
FILES_OF_A_TASK = 8
FILES_OF_PROXIES = 3 * MOST_IN_ALL
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

logger = logging.getLogger(__name__)
TALKATIVE = ("procrastinate", "httpx", "httpx2", "mcp", "google_genai")


def serve(settings: Settings, started: Callable[[ServerInfo, Runtime], None]) -> None:
    """Serve a home until SIGTERM, SIGINT or SIGHUP. `started` is called as soon as the server answers requests."""
    write_log(settings)
    home = Home(settings.home)
    home.prepare(settings.owner_access)
    if home.lock("up").is_taken():
        home.claim_up().release()  # its error names the other server, which helps more than "port in use"
    with (
        listen(address_of(settings), settings.port, expose=settings.expose) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(settings, home, listener, started))


class PlainFormatter(logging.Formatter):
    """Formats log lines without control characters, because a text from an agent could control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback if there is one."""
        return escape_controls(super().format(record))


def write_log(settings: Settings) -> None:
    """Set up logging to standard error.

    The job queue and the clients of models log many messages, and URLs in these messages may contain secrets. So with
    the log level info, only their warnings and errors are logged.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper())
    if settings.log_level == "info":
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)


async def _serve(
    settings: Settings, home: Home, listener: socket.socket, started: Callable[[ServerInfo, Runtime], None]
) -> None:
    from midwatch.api.app import create_app  # slow to import, and the server of one agent does not need it

    stopping = asyncio.Event()
    on_signals(stopping)
    info = ServerInfo(os.getpid(), local_url(address_of(settings), listener), __version__, settings.owner_access)
    async with Runtime.open(settings.home, settings=settings, role="up", url=info.url) as runtime:
        app = create_app(runtime)
        warn_of_root()

        def listening() -> None:
            home.announce(info)
            started(info, runtime)

        server = Server(app, stopping, listening, Limits(connections=limit_connections(settings)))
        in_file = settings.owner_access == "file"
        socket = contextlib.nullcontext() if in_file else OwnerSocket(home.owner_socket, runtime.owner_secret)
        with socket, LoopMonitor(settings.loop_limit, runtime.count_standstill):
            await server.serve([listener])
        logger.info("the server accepts no more requests; running tasks are being stopped")


def warn_of_root() -> None:
    """Log a warning if this process runs as root."""
    if os.geteuid() == 0:
        logger.warning("%s; %s", RUNS_AS_ROOT, ROOT_REMEDY)


def on_signals(stopping: asyncio.Event) -> None:
    """Set `stopping` when the process gets a signal to stop. Later signals change nothing, so the stop stays clean."""

    def stop(number: int) -> None:
        name = signal.Signals(number).name
        logger.warning("got %s: %s", name, "still stopping, please wait" if stopping.is_set() else "stopping")
        stopping.set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def address_of(settings: Settings) -> str:
    """Return the address to listen on: the setting `host`, or all addresses if only `expose` is set."""
    return EVERYWHERE[0] if settings.expose and "host" not in settings.model_fields_set else settings.host


def list_addresses(settings: Settings, port: int) -> list[str]:
    """Return the URLs at which other machines can reach an exposed server, as far as this machine knows them."""
    host = address_of(settings)
    if host not in EVERYWHERE:
        return [format_url(host, port)]
    names = [socket.gethostname()]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        if family == socket.AF_INET or host == EVERYWHERE[1]:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))  # sends nothing; the system chooses a source address
                names.append(probe.getsockname()[0])
    return [format_url(name, port) for name in dict.fromkeys(names)]


def limit_connections(settings: Settings) -> int:
    """Return how many connections the server accepts: the setting, or fewer if the limit of open files is too low.

    Each connection is an open file. Tasks and the database need open files too. If possible, the limit is raised.
    """
    other_files = FILES + FILES_OF_A_TASK * settings.slots
    if any(agent.network == "proxy" for agent in settings.agents.values()):
        other_files += FILES_OF_PROXIES
    needed_files = settings.max_connections + other_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed_files:
        more = needed_files if hard == resource.RLIM_INFINITY else min(needed_files, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS has limits that it does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == resource.RLIM_INFINITY or soft >= needed_files:
        return settings.max_connections
    room = min(settings.max_connections, max(soft - other_files, soft // 4))
    if room < settings.max_connections:
        logger.warning("only %d connections are possible, as %d files may be open; raise `ulimit -n`", room, soft)
    return room
