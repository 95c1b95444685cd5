"""The server: one listening socket, one runtime, one clean end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Generator
from ipaddress import ip_address

import uvicorn
import uvloop
from starlette.applications import Starlette

from midwatch import __version__
from midwatch.api.app import create_app
from midwatch.api.protocol import Limits, limited
from midwatch.api.sse import Streams
from midwatch.config import Settings
from midwatch.errors import BadConfig, MidwatchError, PortInUse
from midwatch.home import Home, ServerInfo
from midwatch.runtime import Runtime

GRACE_SECONDS = 3
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - only with `expose`
FEW = 100
"""Connections of agents to a desk that no server serves."""
FILES = 256
FILES_OF_A_TASK = 8
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

logger = logging.getLogger(__name__)
TALKATIVE = ("procrastinate", "httpx", "httpx2", "mcp", "google_genai")


class Server(uvicorn.Server):
    """uvicorn without its ten looks a second: it sleeps until it is told to stop, then ends the event streams."""

    def __init__(
        self, app: Starlette, stopping: asyncio.Event, listening: Callable[[], None], limits: Limits | None = None
    ) -> None:
        """`listening` is called once requests are answered; setting `stopping` ends it."""
        config = uvicorn.Config(
            app, http=limited(limits or Limits()), ws="none", lifespan="off", log_config=None, log_level="warning",
            access_log=False, server_header=False, date_header=False, proxy_headers=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self._streams: Streams = app.state.streams
        self._stopping = stopping
        self._listening = listening

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self._listening()
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._streams.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # `serve` listens to signals for longer than uvicorn lives: until all agents have ended


def serve(settings: Settings, started: Callable[[ServerInfo, Runtime], None]) -> None:
    """Serve a home until SIGTERM, SIGINT or SIGHUP. `started` is called once requests are answered."""
    write_log(settings)
    home = Home(settings.home)
    home.prepare()
    if home.lock("up").taken():
        home.claim_up().release()  # tells who serves this home, which is more helpful than a port in use
    with (
        listen(address_of(settings), settings.port, expose=settings.expose) as listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(_serve(settings, home, listener, started))


def write_log(settings: Settings) -> None:
    """Log to standard error. What the job queue and clients of models do for themselves is told only to those who look
    for a mistake: it is much, and addresses may have secrets in them."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=settings.log_level.upper())
    if settings.log_level == "info":
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)


async def _serve(
    settings: Settings, home: Home, listener: socket.socket, started: Callable[[ServerInfo, Runtime], None]
) -> None:
    stopping = asyncio.Event()
    on_signals(stopping)
    async with Runtime.open(settings.home, settings=settings, role="up") as runtime:
        app = create_app(runtime)
        info = ServerInfo(os.getpid(), url_of(address_of(settings), listener), __version__)
        runtime.url = info.url

        def listening() -> None:
            home.announce(info)
            started(info, runtime)

        server = Server(app, stopping, listening, Limits(connections=room_for(settings)))
        await server.serve([listener])
        logger.info("no longer listening; running tasks are being stopped")


async def answer(runtime: Runtime, listener: socket.socket, stopping: asyncio.Event) -> None:
    """Answer requests until `stopping` is set."""
    await Server(create_app(runtime), stopping, lambda: None, Limits(connections=FEW)).serve([listener])


def on_signals(stopping: asyncio.Event) -> None:
    """Stop at the first signal; a further one changes nothing, so that nothing is lost."""

    def stop(number: int) -> None:
        name = signal.Signals(number).name
        logger.warning("%s: %s", name, "still stopping, please wait" if stopping.is_set() else "stopping")
        stopping.set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)


def address_of(settings: Settings) -> str:
    """Where to listen: exposed on all addresses, unless one was chosen."""
    return EVERYWHERE[0] if settings.expose and "host" not in settings.model_fields_set else settings.host


def listen(host: str, port: int, *, expose: bool = False, command: str = "midwatch up") -> socket.socket:
    """The listening socket, or an error that says what to change: how `command` is started."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not expose and not ip_address(address[0]).is_loopback:
            raise BadConfig(
                f"the setting host is {host}, where others reach the server; if they should, start it with "
                "`midwatch up --expose` or set expose = true; if not, remove host."
            )
        listener = socket.create_server(address, family=family, backlog=2048)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a reply is small writes; none may wait 40 ms
        return listener
    except (socket.gaierror, UnicodeError):
        raise BadConfig(f"the address {host!r} cannot be found; set another host.") from None
    except OSError as problem:
        raise _not_listening(host, port, problem, command) from None


def _not_listening(host: str, port: int, problem: OSError, command: str) -> MidwatchError:
    if problem.errno == errno.EADDRINUSE:
        return PortInUse(f"port {port} on {host} is used by another program; choose one with `{command} --port N`.")
    reason = os.strerror(problem.errno) if problem.errno else str(problem)
    return BadConfig(f"cannot listen on {host} port {port}: {reason}; choose another with `{command} --port N`.")


def url_of(host: str, listener: socket.socket) -> str:
    """Where clients on this machine find the server."""
    port = listener.getsockname()[1]
    if host in EVERYWHERE:  # loopback is one of them
        host = "127.0.0.1" if host == EVERYWHERE[0] else "::1"
    return url(host, port)


def url(host: str, port: int) -> str:
    """The address of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reached_at(settings: Settings, port: int) -> list[str]:
    """Where others find an exposed server, as far as this machine knows."""
    host = address_of(settings)
    if host not in EVERYWHERE:
        return [url(host, port)]
    found = [socket.gethostname()]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        if family == socket.AF_INET or host == EVERYWHERE[1]:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))  # sends nothing; the system chooses the address it would speak from
                found.append(probe.getsockname()[0])
    return [url(name, port) for name in dict.fromkeys(found)]


def room_for(settings: Settings) -> int:
    """How many connections can be held: every one is an open file, and tasks and the database need some, too."""
    others = FILES + FILES_OF_A_TASK * settings.slots
    wanted = settings.max_connections + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS has limits it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return settings.max_connections
    room = min(settings.max_connections, max(soft - others, soft // 4))
    if room < settings.max_connections:
        logger.warning("holds %d connections at most, as it may open only %d files; see `ulimit -n`", room, soft)
    return room
