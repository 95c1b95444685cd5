"""Measure whether a crowd of clients locks another person out: `make bench-crowd`.

A real server process has 600 streams of one token, 500 readers of another token that do not read, and 3 clients that
send huge bodies. Meanwhile another person asks for the health and submits tasks. It prints a table, fails if a request
failed or the p99 is above its target, and prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psutil
import uvloop

from benchmarks.harness import clean_environment, json_line, percentile, print_table, process

STREAMS = 600
UNREAD = 500
SENDERS = 3
BODY = 2_000_000
OLD_EVENTS = 2000
TARGET_MS = 500.0
PATIENCE = 60.0

SERVER = """
import asyncio, sys
from midwatch import Settings
from midwatch.domain.changes import Changes
from midwatch.domain.event import TaskProgress, event
from midwatch.runtime.serve import serve

async def fill(runtime, count):
    events = [event(TaskProgress(text="x" * 1000), runtime.clock.now(), task_id="t_old") for _ in range(count)]
    for start in range(0, count, 500):
        await runtime.store.apply(Changes(events=tuple(events[start:start + 500])))

def started(info, runtime):
    filling = asyncio.get_running_loop().create_task(fill(runtime, int(sys.argv[2])))
    filling.add_done_callback(lambda _: print(info.url, flush=True))

serve(Settings.load(sys.argv[1], port=0, detect_agents=False, log_level="error"), started)
"""


class Latencies(NamedTuple):
    """The milliseconds of the requests of the other person, and what failed."""

    health: list[float]
    submit: list[float]
    failures: Counter[str]

    def row(self, name: str) -> list[str]:
        """Return a row of the table."""
        figures = [percentile(times, part) for times in (self.health, self.submit) for part in (0.5, 0.99)]
        return [name, *(f"{figure:.1f}" for figure in figures), str(self.failures.total())]


@contextmanager
def serve(home: Path) -> Iterator[tuple[int, str, int]]:
    """Start a server and yield its port, the owner's token and its process id."""
    command = [sys.executable, "-c", SERVER, str(home), str(OLD_EVENTS)]
    env = {**clean_environment(), "MIDWATCH_HOME": str(home)}
    with process(command, stdout=subprocess.PIPE, env=env) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        yield port, (home / "token").read_text().strip(), server.pid


async def make_token(port: int, owner: str, name: str) -> str:
    """Create a token of an operator and return its secret."""
    headers = {"authorization": f"Bearer {owner}"}
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers) as client:
        reply = await client.post("/tokens", json={"name": name, "role": "operator"})
        reply.raise_for_status()
        return str(reply.json()["secret"])


# -- the other person --------------------------------------------------------------------------------------------------


async def measure(port: int, token: str, seconds: float) -> Latencies:
    """Ask for the health and submit tasks, each on a new connection, and measure how long this takes."""
    found = Latencies([], [], Counter())
    until = time.monotonic() + seconds
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{port}/api/v1", headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE,
        limits=httpx2.Limits(max_keepalive_connections=0),
    ) as client:  # fmt: skip
        while time.monotonic() < until:
            for times, method, path, body in (
                (found.health, "GET", "/health", None),
                (found.submit, "POST", "/tasks", {"prompt": "hello", "agent": "demo"}),
            ):
                began = time.perf_counter()
                try:
                    reply = await client.request(method, path, json=body)
                    if reply.status_code not in (200, 201):
                        found.failures[f"{path} {reply.status_code}"] += 1
                except httpx2.HTTPError as problem:
                    found.failures[f"{path} {type(problem).__name__}"] += 1
                times.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.05)
    return found


# -- the crowd, in a process of its own --------------------------------------------------------------------------------


def make_head(token: str, line: str, *more: str) -> bytes:
    lines = [f"{line} HTTP/1.1", "host: localhost", f"authorization: Bearer {token}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def make_bodies() -> list[bytes]:
    """Return huge bodies that take long to read: many unknown fields, many lists, many objects, a long text."""
    fields = b",".join(b'"field%d":1' % number for number in range(BODY // 16))
    return [
        b"{%s}" % fields,
        b'{"prompt":[%s[]]}' % (b"[]," * (BODY // 3)),
        b'{"prompt":[%s{}]}' % (b'{"a":1},' * (BODY // 8)),
        b'{"prompt":"%s","unknown":1}' % (b"x" * BODY),
    ]


async def read_for_ever(port: int, token: str, opened: Counter[str]) -> None:
    """Follow all events from the first one, again after each end."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(make_head(token, "GET /api/v1/events?after=0", "accept: text/event-stream"))
        try:
            opened[f"streams {(await reader.readline())[9:12].decode()}"] += 1
            while await reader.read(256 * 1024):
                pass
        except ConnectionError:
            pass
        writer.close()
        await asyncio.sleep(1)


async def open_unread(port: int, token: str, opened: Counter[str], kept: list[socket.socket]) -> None:
    """Ask for all events and do not read them."""
    loop, unread = asyncio.get_running_loop(), socket.socket()
    kept.append(unread)
    unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    unread.setblocking(False)
    try:
        await loop.sock_connect(unread, ("127.0.0.1", port))
        await loop.sock_sendall(unread, make_head(token, "GET /api/v1/events?after=0", "accept: text/event-stream"))
        opened[f"unread {(await loop.sock_recv(unread, 12))[9:12].decode()}"] += 1
    except ConnectionError:
        opened["unread refused"] += 1


async def send_for_ever(port: int, token: str, opened: Counter[str]) -> None:
    """Send huge bodies, one after the other."""
    bodies, number = make_bodies(), 0
    while True:
        body, number = bodies[number % len(bodies)], number + 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (f"content-length: {len(body)}", "content-type: application/json", "connection: close")
        try:
            writer.write(make_head(token, "POST /api/v1/tasks", *head) + body)
            opened[f"bodies {(await reader.readline())[9:12].decode()}"] += 1
        except ConnectionError:
            opened["bodies refused"] += 1
        writer.close()


async def crowd(port: int, tokens: list[str]) -> None:
    """Open everything, print a line, and go on until standard input is closed. Then print what was opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    opened: Counter[str] = Counter()
    kept: list[socket.socket] = []
    streams = [asyncio.create_task(read_for_ever(port, tokens[0], opened)) for _ in range(STREAMS)]
    unread = [asyncio.create_task(open_unread(port, tokens[1], opened, kept)) for _ in range(UNREAD)]
    await asyncio.wait([*streams, *unread], timeout=5)
    senders = [asyncio.create_task(send_for_ever(port, tokens[2], opened)) for _ in range(SENDERS)]
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(opened), flush=True)
    assert senders
    os._exit(0)  # at once, with all connections


async def run(seconds: float) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, serve(Path(folder)) as (port, owner, pid):
        tokens = [await make_token(port, owner, name) for name in ("streams", "unread", "bodies", "person")]
        alone = await measure(port, tokens[3], min(seconds, 5))
        command = [sys.executable, "-m", "benchmarks.crowd", "--port", str(port), "--tokens", *tokens[:3]]
        with process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as others:
            assert others.stdin is not None and others.stdout is not None
            await asyncio.to_thread(others.stdout.readline)
            crowded = await measure(port, tokens[3], seconds)
            memory = psutil.Process(pid).memory_info().rss / 1e6
            others.stdin.write("end\n")
            others.stdin.flush()
            opened: dict[str, int] = json.loads(await asyncio.to_thread(others.stdout.readline))
    header = ["the other person", "health p50 ms", "p99 ms", "submit p50 ms", "p99 ms", "failed"]
    print_table(header, [alone.row("alone"), crowded.row("in a crowd")])
    print("Replies to the crowd:", ", ".join(f"{name}: {count}" for name, count in sorted(opened.items())))
    figures: dict[str, Any] = {
        "health_p99_ms": percentile(crowded.health, 0.99), "submit_p99_ms": percentile(crowded.submit, 0.99),
        "health_alone_p99_ms": percentile(alone.health, 0.99), "submit_alone_p99_ms": percentile(alone.submit, 0.99),
        "failed": crowded.failures.total(), "requests": len(crowded.health) + len(crowded.submit),
        "server_memory_mb": memory,
    }  # fmt: skip
    print(json_line(figures))
    if crowded.failures:
        raise SystemExit(f"MISSED: some requests failed: {dict(crowded.failures)}")
    if max(figures["health_p99_ms"], figures["submit_p99_ms"]) > TARGET_MS:
        raise SystemExit(f"MISSED: the p99 is above {TARGET_MS:.0f} ms.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--tokens", nargs="*", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    uvloop.run(run(chosen.seconds) if chosen.port is None else crowd(chosen.port, chosen.tokens))
