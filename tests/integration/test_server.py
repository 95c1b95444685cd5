"""Test the server with real sockets that send too much, too slowly, or invalid data, or that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import psutil
import pytest
import uvloop

from midwatch.agents.function import FunctionAgent
from midwatch.api.app import create_app
from midwatch.api.protocol import Connection, Limits
from midwatch.api.refusal import LogLimiter
from midwatch.api.server import Server as ApiServer
from midwatch.api.server import listen
from midwatch.base.clock import SystemClock
from midwatch.base.errors import BadConfig
from midwatch.desk.config import Settings
from midwatch.domain.changes import Changes
from midwatch.domain.event import MessageDelta, Payload, ToolExecEnd, event
from midwatch.runtime.runtime import Runtime
from midwatch.runtime.serve import address_of, list_addresses
from midwatch.stores.verbs.event import MOST_READ
from servers import PATIENCE, PROGRAM, Server, environment, eventually

HEALTH = "/api/v1/health"


# -- the peer ----------------------------------------------------------------------------------------------------------


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), timeout=PATIENCE)


def read_to_end(sock: socket.socket) -> bytes:
    """Return everything up to the end of the connection, which the server must close."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(65536):
            received += part
    return received


def exchange(port: int, *parts: bytes) -> bytes:
    """Return the reply of the server up to the end of the connection."""
    with connect(port) as sock:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                sock.sendall(part)
        return read_to_end(sock)


def request(target: str = HEALTH, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def statuses(response: bytes) -> list[int]:
    """Return the statuses of all replies; no body in these tests contains a similar line."""
    return [int(status) for status in re.findall(rb"^HTTP/1\.1 (\d+) ", response, re.M)]


def problem(response: bytes) -> dict[str, object]:
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    assert b"connection: close" in head.lower()
    details: dict[str, object] = json.loads(body)
    assert details["status"] == statuses(response)[0]
    return details


def is_refused(response: bytes) -> bool:
    """Return whether the reply is one 4xx or empty."""
    return response == b"" or [status // 100 for status in statuses(response)] == [4]


def reply(sock: socket.socket) -> int:
    """Return the status of one reply with a known length."""
    file = sock.makefile("rb")
    status = int(file.readline().split()[1])
    lines = list(iter(file.readline, b"\r\n"))
    file.read(next(int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")))
    return status


# -- the servers -------------------------------------------------------------------------------------------------------


class ServerThread:
    """A server in this process, on its own loop and thread as in a process of its own, with other limits."""

    port: int
    token: str
    server: ApiServer
    runtime: Runtime

    def __init__(self, home: Path, limits: Limits) -> None:
        self.home, self.limits = home, limits
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        settings = Settings.load(self.home, detect_agents=False, shutdown_grace=0, default_agent="echo")
        agents = {"echo": FunctionAgent("echo", lambda prompt: prompt, on_loop=False)}
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            with listen("127.0.0.1", 0) as listener:
                async with Runtime.open(self.home, settings=settings, agents=agents, role="up") as self.runtime:
                    self.port, self.token = listener.getsockname()[1], self.runtime.home.token()
                    app = create_app(self.runtime)
                    self.streams = app.state.streams
                    self.server = ApiServer(app, self._stopping, self._ready.set, self.limits)
                    await self.server.serve([listener])
        finally:
            self._ready.set()

    def __enter__(self) -> ServerThread:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    @property
    def connections(self) -> list[Connection]:
        return list(self.server.server_state.connections)  # type: ignore[arg-type]

    def authorized(self, target: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
        return request(f"/api/v1{target}", f"Authorization: Bearer {self.token}", *headers, method=method, body=body)

    def post(self, *headers: str, body: bytes = b"") -> bytes:
        return self.authorized("/tasks", "Content-Type: application/json", *headers, method="POST", body=body)

    def fill(self, count: int) -> int:
        """Submit so many long prompts and return their total length."""
        body = json.dumps({"prompt": "x" * 450_000, "delay": 3600}).encode()
        for _ in range(count):
            response = exchange(self.port, self.post(f"Content-Length: {len(body)}", "Connection: close", body=body))
            assert statuses(response) == [201]
        return count * 450_000

    def append(self, *payloads: Payload) -> None:
        """Store events, and wait until they are stored."""
        changes = Changes(events=tuple(event(payload, SystemClock().now(), task_id="t_1") for payload in payloads))
        asyncio.run_coroutine_threadsafe(self.runtime.store.apply(changes), self._loop).result(PATIENCE)

    def show(self, *payloads: Payload) -> None:
        """Show live events, and wait until the watchers have them."""

        async def show_all() -> None:
            for payload in payloads:
                self.runtime.bus.show(event(payload, SystemClock().now(), task_id="t_1"))

        asyncio.run_coroutine_threadsafe(show_all(), self._loop).result(PATIENCE)

    def tasks(self) -> int:
        response = exchange(self.port, self.authorized("/summary", "Connection: close"))
        total: int = json.loads(response.partition(b"\r\n\r\n")[2])["total"]
        return total


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a real `midwatch up` with default settings. No request may make it log a traceback."""
    server = Server(tmp_path_factory.mktemp("served") / "home", MIDWATCH_DETECT_AGENTS="false")
    asyncio.run(server.start())
    yield server
    assert statuses(exchange(server.port, request(HEALTH, "Connection: close"))) == [200]
    assert asyncio.run(server.stop()) == 0
    log = (server.home.parent / "server.log").read_text()
    assert "Traceback" not in log
    assert (server.home / "token").read_text().strip() not in log


# -- malformed requests ------------------------------------------------------------------------------------------------

CHUNKED = "Transfer-Encoding: chunked"
POST = f"POST {HEALTH} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
GET = f"GET {HEALTH} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()

MALFORMED = {
    "unknown method": b"FETCH / HTTP/1.1\r\nHost: a\r\n\r\n",
    "small method": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "no request at all": b"hello\r\n\r\n",
    "TLS hello": bytes.fromhex("16030102000100") + bytes(505),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "HTTP/0.9": f"GET {HEALTH}\r\n\r\n".encode(),
    "HTTP/0.9 by name": f"GET {HEALTH} HTTP/0.9\r\n\r\n".encode(),
    "HTTP/2.0 by name": f"GET {HEALTH} HTTP/2.0\r\nHost: a\r\n\r\n".encode(),
    "HTTP/9.9": f"GET {HEALTH} HTTP/9.9\r\nHost: a\r\n\r\n".encode(),
    "bare LF": GET.replace(b"\r\n", b"\n") + b"\n",
    "one bare LF": GET + b"A: b\nC: d\r\n\r\n",
    "bare CR": GET + b"A: b\rC: d\r\n\r\n",
    "NUL in a header": GET + b"A: b\0c\r\n\r\n",
    "NUL in the path": b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded NUL in the path": b"GET /api/v1/tasks/%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded NUL in the query": b"GET /api/v1/tasks?agent=%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded line break in the path": b"GET /api/v1/tasks/%0d%0aX HTTP/1.1\r\nHost: a\r\n\r\n",
    "no UTF-8 in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded, no UTF-8 in the path": b"GET /api/v1/tasks/%ff HTTP/1.1\r\nHost: a\r\n\r\n",
    "encoded, no UTF-8 in the query": b"GET /api/v1/tasks?agent=%c3%28 HTTP/1.1\r\nHost: a\r\n\r\n",
    "overlong slash": b"GET /%c0%af HTTP/1.1\r\nHost: a\r\n\r\n",
    "no UTF-8 in a header": GET + b"A: \xff\r\n\r\n",
    "no UTF-8 in a header's name": GET + b"\xc3\xa4: a\r\n\r\n",
    "space before the colon": GET + b"A : b\r\n\r\n",
    "no colon": GET + b"A\r\n\r\n",
    "no name": GET + b": a\r\n\r\n",
    "folded header": GET + b"A: b\r\n c\r\n\r\n",
    "no host": f"GET {HEALTH} HTTP/1.1\r\n\r\n".encode(),
    "two hosts": GET + b"Host: 127.0.0.1\r\n\r\n",
    "two tokens": GET + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "a proxy's request": b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "a tunnel": b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
    "no path": b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "twice the same length": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "negative length": POST + b"Content-Length: -1\r\n\r\n",
    "length with a sign": POST + b"Content-Length: +3\r\n\r\nabc",
    "length in letters": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "length beyond 64 bits": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "length beyond all": POST + b"Content-Length: 9999999999999999999\r\n\r\n",
    "chunk beyond 64 bits": POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "negative chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n",
    "chunk without end": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "compressed transfer": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown transfer": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "hidden transfer": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "two transfers": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "strange expectation": POST + b"Expect: 200-maybe\r\nContent-Length: 3\r\n\r\nabc",
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_requests_are_refused_and_the_connection_closed(served: Server, sent: bytes) -> None:
    response = exchange(served.port, sent)
    assert is_refused(response), response
    if response and statuses(response) != [413]:
        assert problem(response)["code"] == "malformed_request"


@pytest.mark.parametrize("step", [1, 7])
def test_malformed_requests_in_small_pieces_are_refused(served: Server, step: int) -> None:
    for sent in (MALFORMED["length and chunks"], MALFORMED["one bare LF"], MALFORMED["two hosts"]):
        response = exchange(served.port, *(sent[at : at + step] for at in range(0, len(sent), step)))
        assert problem(response)["code"] == "malformed_request"


def test_text_in_other_scripts_is_accepted(served: Server) -> None:
    response = exchange(served.port, GET + "Cookie: name=ä\r\nConnection: close\r\n\r\n".encode())
    assert statuses(response) == [200]
    assert statuses(exchange(served.port, request("/api/v1/tasks/%C3%A4", "Connection: close"))) == [401]


def test_random_damage_to_requests_does_no_harm(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Check that no reply is 500 or above, nothing logs a traceback, and the server closes the connection."""
    chance = random.Random(4)

    def damaged(whole: bytes) -> bytes:
        for _ in range(chance.randint(1, 4)):
            at, size = chance.randrange(len(whole)), chance.choice((0, 1, 5))
            new = chance.choice((b"", b"\0", b"\xff", b"\n", b"\r", b":", b" ", b"%", b"\r\n", chance.randbytes(3)))
            whole = whole[:at] + new + whole[at + size :]
        return whole

    async def one(port: int, sent: bytes) -> bytes:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            response = b""
            with contextlib.suppress(ConnectionError):
                writer.write(sent)
                response = await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            return response

    async def many(host: ServerThread) -> list[bytes]:
        whole = [
            host.post("Content-Length: 15", body=b'{"prompt": "a"}'),
            host.post(CHUNKED, body=b'5\r\n{"pro\r\na\r\nmpt": "a"}\r\n0\r\n\r\n'),
            host.authorized("/tasks?limit=5"),
        ]
        sent = [damaged(chance.choice(whole)) for _ in range(600)]
        return [response for at in range(0, 600, 100) for response in await asyncio.gather(
            *(one(host.port, piece) for piece in sent[at : at + 100])
        )]  # fmt: skip

    with ServerThread(home, Limits(head_seconds=0.3, pause_seconds=0.3, last_seconds=0.2)) as host:
        responses = asyncio.run(many(host))
    found_statuses = [status for response in responses for status in statuses(response)]
    assert max(found_statuses) < 500
    assert {200, 201, 400, 408} <= set(found_statuses)
    assert "Traceback" not in caplog.text


def test_each_kind_of_refusal_is_logged_once_per_peer(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ServerThread(home, Limits()) as host:
        for _ in range(5):
            exchange(host.port, MALFORMED["TLS hello"])
            exchange(host.port, GET + b"A: " + b"x" * 70_000 + b"\r\nAuthorization: Bearer s3cret\r\n\r\n")
    lines = [record.getMessage() for record in caplog.records if record.name == "midwatch.api.protocol"]
    assert [line.split(": ")[0:2] for line in lines] == [
        ["refused a request from 127.0.0.1", "400 malformed_request"],
        ["refused a request from 127.0.0.1", "431 headers_too_large"],
    ]
    assert not any("s3cret" in line or "\n" in line for line in lines)


def test_the_log_of_refusals_is_bounded() -> None:
    log = LogLimiter()
    peers = [f"10.0.{number // 256}.{number % 256}" for number in range(1000)]
    assert [peer for peer in peers * 2 if log.admits(peer, "malformed_request")] == peers[:100]


# -- smuggling ---------------------------------------------------------------------------------------------------------


def test_code_that_few_servers_use_is_not_loaded_at_the_start(home: Path) -> None:
    rare = ["midwatch.agents.streams.claude", "midwatch.agents.terminal.dialog", "midwatch.agents.acp.profiles"]
    rare += ["midwatch.api.agentapi.app", "markdown_it", "prometheus_client", "httpx2", "pydantic_settings"]
    code = (
        "import asyncio, sys; from midwatch import Runtime, Settings; from midwatch.api.app import create_app\n"
        "async def main():\n"
        "    async with Runtime.open(settings=Settings.load(detect_agents=False)) as desk: create_app(desk)\n"
        f"asyncio.run(main()); print([name for name in {rare} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180, env=environment(home)
    )
    assert done.stdout.strip() == "[]"


def test_paths_used_by_model_clients_are_not_logged(home: Path) -> None:
    code = (
        "import logging; from midwatch.runtime.serve import write_log; from midwatch.desk.config import Settings\n"
        "write_log(Settings())\n"
        "for name in ('midwatch', 'httpx', 'httpx2', 'mcp.client.streamable_http'): logging.getLogger(name).info(name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180, env=environment(home)
    )
    assert [line.rpartition(" ")[2] for line in done.stderr.splitlines()] == ["midwatch"]


def test_a_pipelined_request_is_not_run(home: Path) -> None:
    """The first request is answered, then the connection ends; a client that sent more repeats it."""
    with ServerThread(home, Limits()) as host:
        create = host.post("Content-Length: 15", body=b'{"prompt": "a"}')
        response = exchange(host.port, host.authorized("/summary") + create + create)
        assert statuses(response) == [200]
        assert b"connection: close" in response
        assert host.tasks() == 0


def test_a_stream_ends_with_its_reader_even_after_a_second_request(home: Path) -> None:
    with ServerThread(home, Limits()) as host:
        streams = host.streams
        with connect(host.port) as sock:
            sock.sendall(host.authorized("/events"))
            assert b"200 OK" in sock.recv(100)
            assert asyncio.run(eventually(lambda: len(streams) == 1))
            sock.sendall(host.authorized("/summary"))
            assert asyncio.run(eventually(lambda: host.connections[0]._stage == "over"))
            assert len(streams) == 1
        assert asyncio.run(eventually(lambda: not streams and not host.connections))


def test_the_body_of_an_upgrade_is_not_a_new_request(home: Path) -> None:
    with ServerThread(home, Limits()) as host, connect(host.port) as sock:
        inner = host.post("Content-Length: 15", body=b'{"prompt": "a"}')
        sock.sendall(
            host.authorized("/summary", "Connection: upgrade", "Upgrade: h2c", f"Content-Length: {len(inner)}")
        )
        head = sock.recv(65536)
        with contextlib.suppress(ConnectionError):
            sock.sendall(inner)
        assert statuses(head + read_to_end(sock)) == [200]
        assert host.tasks() == 0


def test_a_trailer_is_not_a_header(home: Path) -> None:
    with ServerThread(home, Limits()) as host:
        body = f'f\r\n{{"prompt": "a"}}\r\n0\r\nAuthorization: Bearer {host.token}\r\n\r\n'.encode()
        headers = ("Content-Type: application/json", "Connection: close", CHUNKED)
        assert statuses(exchange(host.port, request("/api/v1/tasks", *headers, method="POST", body=body))) == [401]
        assert host.tasks() == 0


# -- size --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        GET + b"A: " + b"x" * 65_536 + b"\r\n\r\n",
        GET + b"A: " + b"x" * 5_000_000,
        GET + b"".join(b"A%d: %s\r\n" % (number, b"x" * 1000) for number in range(80)) + b"\r\n",
        GET + b"A: b\r\n" * 100 + b"\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /" + b"x" * 5_000_000,
        b"\r\n" * 40_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nA: " + b"x" * 2_000_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 2_000_000,
    ],
    ids=["one", "endless", "together", "many", "target", "endless target", "line breaks", "trailer", "chunk extension"],
)  # fmt: skip
def test_headers_above_the_limit_are_refused_early(served: Server, sent: bytes) -> None:
    response = exchange(served.port, sent)
    assert (statuses(response), problem(response)["code"]) == ([431], "headers_too_large")


def test_headers_of_the_largest_size_are_accepted(served: Server) -> None:
    fill = "\r\n".join(f"A{number}: {'x' * 630}" for number in range(98))
    assert statuses(exchange(served.port, request(HEALTH, fill, "Connection: close"))) == [200]


def test_a_body_above_the_limit_is_refused_while_it_is_sent(home: Path) -> None:
    with ServerThread(home, Limits()) as host:
        response = exchange(host.port, host.post("Content-Length: 6000000", body=b"x" * 6_000_000))
        assert (statuses(response), problem(response)["field"]) == ([413], "body")
        response = exchange(host.port, host.post(CHUNKED), *[b"100000\r\n" + b"x" * 0x100000 + b"\r\n"] * 6)
        assert (statuses(response), problem(response)["field"]) == ([413], "body")


def test_a_reply_before_the_end_of_the_request_closes_the_connection(served: Server) -> None:
    """The next request could count as the rest of this one; a complete request does not close the connection."""
    with connect(served.port) as sock:
        sock.sendall(request("/api/v1/tasks", "Content-Length: 5000", method="POST", body=b"x" * 10))
        assert problem(read_to_end(sock))["code"] == "unauthorized"
    with connect(served.port) as sock:
        for _ in range(2):
            sock.sendall(request("/api/v1/tasks"))
            assert reply(sock) == 401


def test_an_endless_body_is_cut_off(home: Path) -> None:
    with ServerThread(home, Limits(last_bytes=1_000_000, last_seconds=60)) as host, connect(host.port) as sock:
        sock.sendall(host.post("Content-Length: 9000000000000"))
        with pytest.raises(ConnectionError):
            for _ in range(2000):
                sock.sendall(b"x" * 1_000_000)


# -- time limits -------------------------------------------------------------------------------------------------------

QUICK = Limits(head_seconds=0.4, pause_seconds=0.4, body_seconds=1.5, last_seconds=0.2)


def test_idle_connections_are_closed(home: Path) -> None:
    with ServerThread(home, QUICK) as host:
        assert exchange(host.port) == b""
        response = exchange(host.port, request(HEALTH))
        assert statuses(response) == [200]
        assert b"connection: close" not in response


def test_incomplete_headers_time_out(home: Path) -> None:
    with ServerThread(home, QUICK) as host:
        assert problem(exchange(host.port, GET))["code"] == "request_timeout"
        with connect(host.port) as sock:
            sock.sendall(request(HEALTH))
            assert reply(sock) == 200
            sock.sendall(b"GET / HT")
            assert statuses(read_to_end(sock)) == [408]


def test_slowly_sent_headers_time_out(home: Path) -> None:
    with ServerThread(home, QUICK) as host, connect(host.port) as sock:
        sock.settimeout(0.05)
        response, deadline = b"", time.monotonic() + PATIENCE
        sock.sendall(GET)
        while not response:
            assert time.monotonic() < deadline
            with contextlib.suppress(TimeoutError, ConnectionError):  # the server may have closed it already
                sock.sendall(b"A: b\r\n")
            with contextlib.suppress(TimeoutError):
                response = sock.recv(65536)
        assert statuses(response) == [408]


@pytest.mark.parametrize("pace", [0, 0.1], ids=["stands still", "trickles"])
def test_a_request_with_a_late_body_is_not_handled(home: Path, pace: float) -> None:
    """The body would be valid JSON without its missing end."""
    with ServerThread(home, QUICK) as host, connect(host.port) as sock:
        sock.sendall(host.post("Content-Length: 500", body=b'{"prompt": "a"}'))
        response, deadline = b"", time.monotonic() + PATIENCE
        sock.settimeout(pace or PATIENCE)
        while not response:
            assert time.monotonic() < deadline
            with contextlib.suppress(TimeoutError):
                response = sock.recv(65536)
            if not response:
                with contextlib.suppress(ConnectionError):  # the server may have closed it already
                    sock.sendall(b" ")
        assert statuses(response) == [408]
        assert host.tasks() == 0


def test_a_request_with_a_truncated_body_is_not_handled(home: Path) -> None:
    with ServerThread(home, Limits()) as host:
        with connect(host.port) as sock:
            sock.sendall(host.post("Content-Length: 500", body=b'{"prompt": "a"}'))
        assert asyncio.run(eventually(lambda: not host.connections))
        assert host.tasks() == 0


def test_expect_continue_is_answered_only_for_accepted_requests(home: Path) -> None:
    headers = ("Expect: 100-continue", "Content-Length: 15", "Content-Type: application/json")
    with ServerThread(home, QUICK) as host:
        with connect(host.port) as sock:
            sock.sendall(host.post(*headers[:2]))
            assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(b'{"prompt": "a"}')
            assert reply(sock) == 201
        assert statuses(exchange(host.port, host.post(*headers[:2]))) == [100, 408]
        assert statuses(exchange(host.port, request("/api/v1/tasks", *headers, method="POST"))) == [401]
        assert host.tasks() == 1


def test_a_stream_has_no_time_limit(home: Path) -> None:
    with ServerThread(home, QUICK) as host, connect(host.port) as sock:
        sock.sendall(host.authorized("/events?after=0"))
        assert b"200 OK" in sock.recv(100)
        for _ in range(5):
            assert exchange(host.port) == b""  # an idle connection was closed, so that much time has passed
        assert statuses(exchange(host.port, host.post("Content-Length: 15", body=b'{"prompt": "a"}'))) == [201]
        received = b""
        while b"event: task_finished" not in received:
            received += sock.recv(65536)


def test_an_unread_reply_is_cut_off(home: Path) -> None:
    with ServerThread(home, QUICK) as host:
        size = host.fill(20)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(PATIENCE)
            sock.connect(("127.0.0.1", host.port))
            sock.sendall(host.authorized("/events", "Accept: application/json"))
            assert sock.recv(12) == b"HTTP/1.1 200"
            assert asyncio.run(eventually(lambda: not host.connections))
            assert len(read_to_end(sock)) < size


def test_a_slowly_read_reply_is_complete(home: Path) -> None:
    """The limit does not count while the reader makes progress, which the system reports for a megabyte at once."""
    with ServerThread(home, replace(QUICK, pause_seconds=1.5)) as host:
        size = host.fill(20)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 200_000)
            sock.settimeout(PATIENCE)
            sock.connect(("127.0.0.1", host.port))
            sock.sendall(host.authorized("/events", "Accept: application/json"))
            received = 0
            while part := sock.recv(200_000):
                received += len(part)
                time.sleep(0.1)
            assert received > min(size, MOST_READ)  # no page of the log is larger


# -- numbers of connections --------------------------------------------------------------------------------------------


def test_connections_above_the_limit_are_refused(home: Path) -> None:
    with ServerThread(home, Limits(connections=3, idle_seconds=60)) as host, contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(host.port)) for _ in range(3)]
        assert asyncio.run(eventually(lambda: len(host.connections) == 3))
        for _ in range(3):
            response = exchange(host.port, request(HEALTH))
            assert problem(response)["code"] == "too_many_connections"
            assert (statuses(response), b"retry-after: 1\r\n" in response) == ([503], True)
        connections[0].close()
        assert asyncio.run(eventually(lambda: len(host.connections) == 2))
        assert statuses(exchange(host.port, request(HEALTH, "Connection: close"))) == [200]
        connections[1].sendall(request(HEALTH))
        assert reply(connections[1]) == 200


@pytest.mark.parametrize(
    ("sent", "stage"),
    [
        (b"", "head"),
        (GET, "head"),
        (POST.replace(b"health", b"sign-in") + b"Content-Length: 9\r\n\r\n", "body"),
        (MALFORMED["TLS hello"], "over"),
    ],
    ids=["says nothing", "half a head", "no body", "refused"],
)
def test_an_idle_connection_is_closed_for_a_new_one(home: Path, sent: bytes, stage: str) -> None:
    with ServerThread(home, Limits(connections=3, idle_seconds=0)) as host, contextlib.ExitStack() as stack:
        active, idle, other = (stack.enter_context(connect(host.port)) for _ in range(3))
        idle.sendall(sent)
        assert asyncio.run(eventually(lambda: stage in [one._stage for one in host.connections]))
        for sock in (other, active):  # the connections wait again, as the last of the three
            sock.sendall(request(HEALTH))
            assert reply(sock) == 200
        assert statuses(exchange(host.port, request(HEALTH, "Connection: close"))) == [200]
        assert is_refused(read_to_end(idle))
        active.sendall(request(HEALTH))
        assert reply(active) == 200


def test_a_stream_is_not_closed_for_a_new_connection(home: Path) -> None:
    with ServerThread(home, Limits(connections=2, idle_seconds=0)) as host, contextlib.ExitStack() as stack:
        for _ in range(2):
            sock = stack.enter_context(connect(host.port))
            sock.sendall(host.authorized("/events"))
            assert b"200 OK" in sock.recv(100)
        assert statuses(exchange(host.port, request(HEALTH))) == [503]


def test_streams_leave_connections_for_other_requests(home: Path) -> None:
    with ServerThread(home, Limits(connections=10, idle_seconds=60)) as host, contextlib.ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(connect(host.port))
            sock.sendall(host.authorized("/events"))
            assert b"200 OK" in sock.recv(100)
        refused = exchange(host.port, host.authorized("/events", "Connection: close"))
        assert (statuses(refused), problem(refused)["code"]) == ([429], "limit_reached")
        assert statuses(exchange(host.port, request(HEALTH, "Connection: close"))) == [200]


async def test_hundreds_of_slow_peers_do_not_block_the_owner(home: Path) -> None:
    server = Server(home, MIDWATCH_MAX_CONNECTIONS="50", MIDWATCH_DETECT_AGENTS="false")
    await server.start()
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                with contextlib.suppress(ConnectionError):
                    stack.enter_context(connect(server.port)).sendall(GET)
            async with server.client() as client:
                await run_task(client)
    finally:
        assert await server.stop() == 0


async def run_task(client: httpx2.AsyncClient) -> None:
    """Submit a task and wait until it is done."""
    deadline = time.monotonic() + PATIENCE
    client.timeout, task = httpx2.Timeout(10.0), ""
    while True:
        assert time.monotonic() < deadline
        with contextlib.suppress(httpx2.TransportError):
            if not task:
                response = await client.post(
                    "/tasks", json={"prompt": "hello", "agent": "demo", "idempotency_key": "once"}
                )
                task = response.json()["id"] if response.status_code == 201 else ""
            elif (response := await client.get(f"/tasks/{task}")).status_code == 200 and response.json()[
                "status"
            ] == "done":
                return
        await asyncio.sleep(0.05)


ROOM = """
import json, os, resource, sys
from midwatch.runtime.serve import limit_connections
from midwatch.desk.config import Settings
for soft, hard, slots in json.loads(sys.argv[1]):
    if os.fork() == 0:  # a limit that was lowered stays so
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        room = limit_connections(Settings(slots=slots, max_connections=1000))
        print(room, resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
        os._exit(0)
    os.wait()
"""


def test_the_limit_of_open_files_is_raised_as_needed_and_respected() -> None:
    """Return the number of connections that a process with such limits and slots accepts, and its limit afterwards."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert hard == resource.RLIM_INFINITY or hard >= 4096
    expected = {(256, 4096, 4): "1000 1288", (2048, 4096, 4): "1000 2048", (256, 400, 4): "112 400",
                (256, 256, 64): "64 256"}  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", ROOM, json.dumps(list(expected))],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert ran.stdout.splitlines() == list(expected.values())


async def test_tasks_continue_when_connections_use_all_file_descriptors(home: Path) -> None:
    limited = ["sh", "-c", 'ulimit -n 400 && exec "$0" up --json', PROGRAM]
    env = environment(home, MIDWATCH_PORT="0", MIDWATCH_SLOTS="4", MIDWATCH_DETECT_AGENTS="false")
    with subprocess.Popen(limited, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        token = (home / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        try:
            with contextlib.ExitStack() as stack:
                for _ in range(450):
                    with contextlib.suppress(ConnectionError):
                        stack.enter_context(connect(int(url.rpartition(":")[2])))
                async with httpx2.AsyncClient(base_url=f"{url}/api/v1", headers=headers, timeout=10.0) as client:
                    await run_task(client)
        finally:
            server.send_signal(signal.SIGTERM)
        log = server.communicate(timeout=PATIENCE)[1]
    assert server.returncode == 0
    assert "only 112 connections are possible" in log
    assert "503 too_many_connections" in log
    assert "Traceback" not in log


# -- readers that do not read ------------------------------------------------------------------------------------------

READERS = 20
EVENTS = 1000
TEXT = "x" * 40_000


async def test_slow_readers_use_little_memory_and_delay_nobody(home: Path) -> None:
    """Twenty readers, 40 MB of events each: without a bound it would be 800 MB."""
    server = Server(home, MIDWATCH_MAX_OPEN="10000", MIDWATCH_DETECT_AGENTS="false")
    await server.start()
    assert server.process is not None
    memory = psutil.Process(server.process.pid).memory_info
    token = (home / "token").read_text().strip()
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(READERS):
                sock = stack.enter_context(socket.socket())
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.settimeout(PATIENCE)
                sock.connect(("127.0.0.1", server.port))
                sock.sendall(request("/api/v1/events?live=true", f"Authorization: Bearer {token}"))
                assert sock.recv(12) == b"HTTP/1.1 200"
            before = memory().rss
            async with server.client() as client, asyncio.timeout(200):
                reading = asyncio.create_task(read_submissions(client, EVENTS))
                for _ in range(EVENTS // 50):
                    await asyncio.gather(*(submit_later(client) for _ in range(50)))
                await asyncio.wait_for(reading, PATIENCE)
            assert memory().rss - before < 300_000_000
            assert await server.stop() == 0  # while these readers are connected
    finally:
        await server.stop()
    assert "Traceback" not in (home.parent / "server.log").read_text()


async def submit_later(client: httpx2.AsyncClient) -> None:
    response = await client.post("/tasks", json={"prompt": TEXT, "agent": "demo", "delay": 3600})
    assert response.status_code == 201


async def read_submissions(client: httpx2.AsyncClient, count: int) -> None:
    """Read the stream until so many submissions have come."""
    lines: set[str] = set()
    async with client.stream("GET", "/events", params={"kind": "task_submitted"}, timeout=PATIENCE) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                lines.add(line)
                if len(lines) == count:
                    return


def test_a_slow_reader_has_a_small_buffer(home: Path) -> None:
    with ServerThread(home, Limits()) as host, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", host.port))
        sock.sendall(host.authorized("/events?after=0"))
        assert sock.recv(12) == b"HTTP/1.1 200"
        (connection,) = host.connections
        deadline = time.monotonic() + PATIENCE
        while not connection.flow.write_paused:
            largest = host.fill(1)
            assert time.monotonic() < deadline
        host.fill(20)
        assert connection.transport.get_write_buffer_size() < host.limits.buffered_bytes + 2 * largest


SMILES = ToolExecEnd(tool="s", result="\N{GRINNING FACE}" * 500_000, tool_call_id="c", duration=1.0, for_llm_len=1)
"""An event that needs 2 MB, in memory and encoded."""


def test_a_reader_that_does_not_read_costs_less_than_a_megabyte(home: Path) -> None:
    """Count what Python allocates for such readers: events, live events, encoded events, and unsent bytes."""
    with ServerThread(home, Limits()) as host, contextlib.ExitStack() as stack:
        host.append(*[SMILES] * 4)
        wait_for_reader(host, 4)  # caches are filled
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        readers = []
        for _ in range(READERS):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(PATIENCE)
            sock.connect(("127.0.0.1", host.port))
            sock.sendall(host.authorized("/events?live=true"))
            readers.append(sock)
        assert asyncio.run(eventually(lambda: sum(each.flow.write_paused for each in host.connections) == READERS))
        host.show(*(MessageDelta(message_id=f"m{number}", offset=0, text="x" * 1000) for number in range(2000)))
        gc.collect()
        cost = tracemalloc.get_traced_memory()[0] / READERS
        host.append(SMILES)
        wait_for_reader(host, 5)  # slow readers delay nobody
        assert read_ids(readers[0], 5) == [1, 2, 3, 4, 5]  # and still get every event once
    assert cost < 1_000_000


def wait_for_reader(host: ServerThread, count: int) -> None:
    """Read so many events with a new reader."""
    with connect(host.port) as sock:
        sock.sendall(host.authorized("/events"))
        assert read_ids(sock, count) == list(range(1, count + 1))


def read_ids(sock: socket.socket, count: int) -> list[int]:
    """Read a stream until its event number `count`, and return the ids of its events."""
    ids: list[int] = []
    with sock.makefile("rb") as lines:
        while not ids or ids[-1] < count:
            line = lines.readline()
            assert line, "the stream ended"
            if line.startswith(b"id: "):
                ids.append(int(line[4:]))
    return ids


async def test_unfinished_requests_do_not_delay_the_stop(home: Path) -> None:
    server = Server(home, MIDWATCH_DETECT_AGENTS="false")
    await server.start()
    token = (home / "token").read_text().strip()
    with connect(server.port) as idle, connect(server.port) as head, connect(server.port) as body:
        idle.sendall(request(HEALTH))
        assert reply(idle) == 200
        head.sendall(GET)
        body.sendall(request("/api/v1/tasks", f"Authorization: Bearer {token}", "Content-Length: 9", method="POST"))
        server.signal(signal.SIGTERM)
        assert (read_to_end(idle), read_to_end(head), read_to_end(body)) == (b"", b"", b"")
    assert await server.stop() == 0
    assert "Traceback" not in (home.parent / "server.log").read_text()


# -- exposure ----------------------------------------------------------------------------------------------------------


def midwatch(home: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {"MIDWATCH_PORT": "0", "MIDWATCH_DETECT_AGENTS": "false", **env}
    return subprocess.run(
        [PROGRAM, *arguments], env=environment(home, **env), capture_output=True, text=True, timeout=180
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_listening_beyond_loopback_must_be_confirmed(home: Path, host: str) -> None:
    ran = midwatch(home, "up", MIDWATCH_HOST=host)
    assert ran.returncode == 2
    assert re.fullmatch(r"midwatch: the setting `host` is \S+, which other .*--expose.*expose = true.*\n", ran.stderr)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.5"])
def test_loopback_needs_no_confirmation(host: str) -> None:
    with listen(host, 0) as listener:
        assert listener.getsockname()[0].startswith(("127.", "::1"))


@pytest.mark.parametrize("host", ["nowhere.invalid", "", "a" * 300])
def test_an_unknown_host_is_reported(host: str) -> None:
    with pytest.raises(BadConfig, match="change the setting `host`"):
        listen(host, 0)


def test_an_exposed_server_listens_on_all_addresses_by_default(home: Path) -> None:
    assert address_of(Settings.load(home)) == "127.0.0.1"
    assert address_of(Settings.load(home, expose=True)) == "0.0.0.0"
    chosen = Settings.load(home, expose=True, host="127.0.0.1")
    assert address_of(chosen) == "127.0.0.1"
    assert list_addresses(chosen, 7171) == ["http://127.0.0.1:7171"]
    assert list_addresses(Settings.load(home, expose=True), 80)[0] == f"http://{socket.gethostname()}:80"


def test_a_detached_server_can_be_exposed_and_reports_it(home: Path) -> None:
    ran = midwatch(home, "up", "--detach", "--expose")
    try:
        assert ran.returncode == 0, ran.stderr
        assert re.search(r"^Exposed to other machines at http://\S+:\d+.* `midwatch token create` ", ran.stdout, re.M)
        assert "not encrypted" in ran.stdout
        match = re.search(r"listens on http://127\.0\.0\.1:(\d+) ", ran.stdout)
        assert match
        with connect(int(match[1]), "127.0.0.2") as sock:  # nobody answers there unless all addresses are listened on
            sock.sendall(request(HEALTH, "Connection: close"))
            assert statuses(read_to_end(sock)) == [200]
    finally:
        assert midwatch(home, "down").returncode == 0


@pytest.mark.parametrize("exposed", [True, False])
def test_the_startup_message_names_the_address_and_who_can_reach_it(home: Path, exposed: bool) -> None:
    env = environment(home, MIDWATCH_PORT="0", MIDWATCH_DETECT_AGENTS="false")
    arguments = [PROGRAM, "up", *(["--expose"] if exposed else [])]
    with subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        output = ""
        while "Ctrl-C stops" not in output:
            line = server.stdout.readline()
            assert line, output
            output += line
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0
    assert ("Exposed to other machines at" in output, "not encrypted" in output) == (exposed, exposed)
    assert re.search(r"midwatch open +the console in the browser", output)
