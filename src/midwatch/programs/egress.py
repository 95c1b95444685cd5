"""The network of a sandbox with `network = "proxy"`: a proxy in midwatch's process that connects only to listed hosts.

The sandbox has a network of its own that leads nowhere. `egress_wrapper.py` opens two listening sockets in that network
and sends them to midwatch: one for the proxy, and one at the address of midwatch's own server, so that the agent can
use its token. midwatch accepts the connections of the program on these sockets.

The proxy resolves names itself, and checks the addresses. So a name that leads to an address of this machine or its
network is refused, unless the address is in the list as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import stat
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from midwatch.base.addresses import is_public
from midwatch.programs import egress_wrapper

log = logging.getLogger("midwatch.egress")

PORTS = (443, 80)  # of a host in the list without a port
HEAD_LIMIT = 65536
HEAD_SECONDS, CONNECT_SECONDS = 30.0, 15.0
IDLE_SECONDS, LINGER_SECONDS = 3600.0, 60.0  # without data; the second after the program has ended its side
MOST_CONNECTIONS = 64
MOST_IN_ALL = 256
"""The most connections of one program, and of all programs together: each needs descriptors of midwatch's process."""
MOST_LOGGED = 100  # refused targets of one program that are logged
PIECE = 65536
NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
NOT_FORWARDED = re.compile(r"host|connection|keep-alive|proxy-.*", re.IGNORECASE)
READABLE = (sys.prefix, sys.base_prefix, egress_wrapper.__file__)
"""What the wrapper needs to see in the sandbox."""
LOOPBACK = ("127.0.0.1", "localhost")


OPEN: set[asyncio.Task[None]] = set()
"""The connections of all programs."""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


class Target(NamedTuple):
    """A host and a port. In a list of hosts, the port may be None, and the host may begin with `*.`."""

    host: str
    port: int | None

    def admits(self, host: str, port: int) -> bool:
        """Return whether this entry of a list allows connections to a host and port."""
        if port not in (PORTS if self.port is None else (self.port,)):
            return False
        return host == self.host or (self.host.startswith("*.") and host.endswith(self.host[1:]))


def read_target(text: str) -> Target:
    """Read `host`, `*.host`, `host:port` or `[IPv6 address]:port`. Raise ValueError if the text is something else."""
    parts = urlsplit(f"//{text}")
    host, port = (parts.hostname or "").removesuffix("."), parts.port
    valid = NAME.fullmatch(host) is not None
    with suppress(ValueError):
        host, valid = str(ip_address(host)), True
    if parts.netloc != text or "@" in text or not valid or port == 0:
        raise ValueError(f"{text!r} is not a host such as api.example.org, *.example.org or 127.0.0.1:8080")
    return Target(host, port)


class Refused(Exception):
    """Raised with the HTTP status and the text of the answer to a request that the proxy refuses."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Egress:
    """The way out of one sandbox. `own` is the address of midwatch's own server, or None."""

    def __init__(self, agent: str, hosts: Iterable[Target], own: Target | None) -> None:
        self._agent = agent
        self._hosts = tuple(hosts)
        self._own = own
        self._inside, self._outside = socket.socketpair()
        self._outside.setblocking(False)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._logged: set[Target] = set()

    @classmethod
    def for_agent(cls, agent: str, hosts: Iterable[str], env: Mapping[str, str]) -> Egress:
        """Return the way out for a program with the variables `env`."""
        url = env.get("MIDWATCH_URL", "")
        own = read_target(urlsplit(url).netloc) if urlsplit(url).port else None
        return cls(agent, map(read_target, hosts), own)

    # -- the program ---------------------------------------------------------------------------------------------

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """The file descriptors that the program must inherit."""
        return (self._inside.fileno(),)

    def wrap(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command line that opens the way out and then becomes `argv`, inside of the sandbox."""
        own = self._own.port if self._own is not None and self._own.host in LOOPBACK else 0
        wrapper = (sys.executable, "-I", "-S", egress_wrapper.__file__)
        return (*wrapper, str(self._inside.fileno()), str(own), *argv)

    def start(self) -> None:
        """Wait in the background for the sockets of the sandbox. The program must have been started."""
        self._inside.close()
        asyncio.get_running_loop().add_reader(self._outside, self._receive)

    def close(self) -> None:
        """Close all connections."""
        if self._outside.fileno() >= 0:
            with suppress(RuntimeError):  # no loop runs, so nothing was started
                asyncio.get_running_loop().remove_reader(self._outside)
        for sock in (self._inside, self._outside):
            sock.close()
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()

    def _receive(self) -> None:
        """Receive the listening sockets. The wrapper sends them once, or ends without them.

        An agent that takes the wrapper over may send anything. It gains nothing: other files are closed.
        """
        asyncio.get_running_loop().remove_reader(self._outside)
        descriptors: list[int] = []
        with suppress(OSError):
            _, descriptors, _, _ = socket.recv_fds(self._outside, 1, 2)
        self._outside.close()
        servers: list[Serve] = [self._serve_proxy, *([self._serve_own] if self._own is not None else [])]
        for number, descriptor in enumerate(descriptors):
            if number < len(servers) and _is_listening(descriptor):
                self._spawn(self._listen(socket.socket(fileno=descriptor), servers[number]))
            else:
                os.close(descriptor)

    async def _listen(self, listening: socket.socket, serve: Serve) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._tasks) < MOST_CONNECTIONS and len(OPEN) < MOST_IN_ALL:
                self._spawn(self._handle(reader, writer, serve), OPEN)
            else:
                writer.close()

        try:
            self._servers.append(await asyncio.start_server(accept, sock=listening, limit=HEAD_LIMIT))
        except BaseException:
            listening.close()
            raise

    def _spawn(self, work: Coroutine[None, None, None], *more: set[asyncio.Task[None]]) -> None:
        """Start work, and keep its task here and in `more` until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        for kept in (self._tasks, *more):
            kept.add(task)
            task.add_done_callback(kept.discard)

    # -- one connection ------------------------------------------------------------------------------------------

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, serve: Serve) -> None:
        """Serve one connection of the program, answer a refusal, and close the connection."""
        try:
            await serve(reader, writer)
        except Refused as refused:
            body = f"midwatch: {refused}\n".encode()
            head = f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
            with suppress(OSError):
                await writer.drain()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            pass  # one side is gone
        finally:
            writer.close()

    async def _serve_own(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect the program to midwatch's own server."""
        assert self._own is not None and self._own.port is not None
        await _join(reader, writer, await asyncio.open_connection(self._own.host, self._own.port))

    async def _serve_proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read the head of a request, connect to its host if the host is in the list, and pass all data on."""
        try:
            async with asyncio.timeout(HEAD_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, where, _ = head.split("\r\n", 1)[0].split(" ")
            target = read_target(where if method == "CONNECT" else _read_authority(where))
        except (ValueError, TimeoutError, asyncio.LimitOverrunError):
            raise Refused("400 Bad Request", "only CONNECT and requests of http:// addresses are possible") from None
        port = target.port or (443 if method == "CONNECT" else 80)
        upstream = await self._connect(target.host, port)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            upstream[1].write(_rewrite(head, where).encode("latin-1"))
        await _join(reader, writer, upstream)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a host if the rules allow it. Raise Refused if they do not, or if no connection is possible."""
        if self._own != (host, port) and not self._lists(host, port):
            raise self._refuse(Target(host, port), "is not in the list")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                records = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = [str(record[4][0]).partition("%")[0] for record in records]
                if self._own != (host, port):
                    for address in addresses:
                        if not is_public(ip_address(address)) and not self._lists(address, port):
                            raise self._refuse(Target(host, port), f"leads to {address}, which is not in the list")
                return await _open_first(addresses, port)
        except (OSError, UnicodeError, TimeoutError) as problem:
            why = getattr(problem, "strerror", None) or "it does not answer"
            raise Refused("502 Bad Gateway", f"{host}:{port} cannot be reached: {why}") from None

    def _lists(self, host: str, port: int) -> bool:
        return any(entry.admits(host, port) for entry in self._hosts)

    def _refuse(self, target: Target, why: str) -> Refused:
        text = f"{target.host}:{target.port} {why} agents.{self._agent}.network_hosts; add it there if you trust it."
        if target not in self._logged and len(self._logged) < MOST_LOGGED:
            self._logged.add(target)
            log.warning("a program was refused the network: %s", text)
        return Refused("403 Forbidden", text)


def _is_listening(descriptor: int) -> bool:
    """Return whether a file descriptor is a socket that listens for IPv4 connections."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return False
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        return sock.family == socket.AF_INET and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


async def _open_first(addresses: list[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first of the addresses that answers."""
    for address in addresses[:-1]:
        with suppress(OSError):
            return await asyncio.open_connection(address, port)
    return await asyncio.open_connection(addresses[-1], port)


def _read_authority(url: str) -> str:
    """Return the host and port of an http:// address. Raise ValueError for another address."""
    parts = urlsplit(url)
    if parts.scheme != "http":
        raise ValueError(url)
    return parts.netloc


def _rewrite(head: str, url: str) -> str:
    """Return the head of a request to a proxy as the host expects it, for one request on its connection."""
    first, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [line for line in lines if not NOT_FORWARDED.fullmatch(line.partition(":")[0].strip())]
    method, _, version = first.split(" ")
    return "\r\n".join((f"{method} {path} {version}", f"Host: {parts.netloc}", *kept, "Connection: close", "", ""))


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Pass data on in both directions until the host has ended, or one side is gone or idle for too long."""
    heard_at = asyncio.get_running_loop().time()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        nonlocal heard_at
        while data := await source.read(PIECE):
            heard_at = asyncio.get_running_loop().time()
            sink.write(data)
            await sink.drain()
        sink.write_eof()

    sending = asyncio.create_task(pump(reader, upstream[1]))
    receiving = asyncio.create_task(pump(upstream[0], writer))
    try:
        while not receiving.done():
            patience = LINGER_SECONDS if sending.done() else IDLE_SECONDS
            rest = heard_at + patience - asyncio.get_running_loop().time()
            if rest <= 0:
                break
            waiting = {task for task in (sending, receiving) if not task.done()}
            await asyncio.wait(waiting, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, receiving):
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
        upstream[1].close()
