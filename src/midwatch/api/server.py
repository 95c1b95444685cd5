"""The server: one listening socket that answers requests for one desk until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Generator
from functools import partial
from ipaddress import ip_address
from typing import cast

import uvicorn
from starlette.applications import Starlette

from midwatch.api.protocol import Connection, Limits, Shared
from midwatch.api.sse import Streams
from midwatch.base.errors import BadConfig, MidwatchError, PortInUse
from midwatch.desk.desk import Desk

GRACE_SECONDS = 3
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - only with `expose`
MAX_AGENT_CONNECTIONS = 100


class Server(uvicorn.Server):
    """A uvicorn server that waits for `stopping` instead of polling, and then ends the event streams."""

    def __init__(
        self, app: Starlette, stopping: asyncio.Event, listening: Callable[[], None], limits: Limits | None = None
    ) -> None:
        """Prepare to serve. The server calls `listening` when it accepts requests, and ends when `stopping` is set."""
        limits = limits or Limits()
        connection = partial(Connection, Shared(limits))
        config = uvicorn.Config(
            app, http=cast("type[Connection]", connection), ws="none", lifespan="off", log_config=None,
            log_level="warning", access_log=False, server_header=False, date_header=False, proxy_headers=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self._streams: Streams = app.state.streams
        self._streams.keep_some_for_requests(limits.connections)
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
        yield  # the module `serve` handles signals, until all agents have ended: longer than uvicorn runs


async def answer(desk: Desk, listener: socket.socket, stopping: asyncio.Event) -> None:
    """Answer requests that the agents of a desk send, until `stopping` is set. For a desk without its own server."""
    from midwatch.api.app import create_app  # slow to import, and the server of one agent does not need it

    await Server(create_app(desk), stopping, lambda: None, Limits(connections=MAX_AGENT_CONNECTIONS)).serve([listener])


def listen(host: str, port: int, *, expose: bool = False, command: str = "midwatch up") -> socket.socket:
    """Return a socket that listens on this address. The error, if any, suggests other options of `command`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if not expose and not ip_address(address[0]).is_loopback:
            raise BadConfig(
                f"the setting `host` is {host}, which other machines can reach; to allow this, start the server with "
                "`midwatch up --expose` or set `expose = true`; to forbid it, remove the setting `host`."
            )
        listener = socket.create_server(address, family=family, backlog=2048)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else small replies may wait 40 ms
        return listener
    except (socket.gaierror, UnicodeError):
        raise BadConfig(f"the address {host!r} cannot be found; change the setting `host`.") from None
    except OSError as problem:
        raise _explain(host, port, problem, command) from None


def _explain(host: str, port: int, problem: OSError, command: str) -> MidwatchError:
    if problem.errno == errno.EADDRINUSE:
        return PortInUse(f"port {port} on {host} is used by another program; choose another with `{command} --port N`.")
    reason = os.strerror(problem.errno) if problem.errno else str(problem)
    return BadConfig(f"cannot listen on {host} port {port}: {reason}; choose another port with `{command} --port N`.")


def local_url(host: str, listener: socket.socket) -> str:
    """Return the address of the server for clients on this machine."""
    port = listener.getsockname()[1]
    if host in EVERYWHERE:  # includes the loopback address
        host = "127.0.0.1" if host == EVERYWHERE[0] else "::1"
    return format_url(host, port)


def format_url(host: str, port: int) -> str:
    """Return a host and a port as an address."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
