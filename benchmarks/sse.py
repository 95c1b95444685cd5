"""Measure events sent to many readers: `make bench-sse`.

A real server process writes 50 events a second to its store (synchronous = FULL) while readers in another process
follow them over HTTP: one, many, and a crowd. Other readers do not read at all, and the growth of the server's memory
is measured. It prints a table, a sentence for every missed target, and one JSON object as its last line.

Each process needs a file descriptor for every reader. The benchmark raises its own limit; `ulimit -Hn` must be at least
2500 for a crowd of 2000.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import uvloop

from benchmarks.harness import NOISY_CORES, busy_seconds, json_line, percentile, print_table

RATE = 50
TARGETS = {
    "one_p50_ms": (0.5, False),
    "many_p50_ms": (6.0, False),
    "lost": (0, False),
    "slow_reader_mb": (1.0, False),
    "wire_ratio": (2.0, False),
    "get_during_turn_p99_ms": (50.0, False),
}
REPLY = 73_000
STEPS = 450
SLOW_READERS = 100
STORED = ((2000, 300), (100, 40_000), (20, 1_000_000))
"""The events that slow readers should read: how many, and the length of each text. The log has all of them."""
SPARE_FILES = 500
"""Connections and file descriptors for everything else than readers."""

SERVER = """
import asyncio, ctypes, gc, json, signal, sys, time
import uvloop
from midwatch import Runtime, Settings
from midwatch.api.app import create_app
from midwatch.api.protocol import Limits
from midwatch.runtime.serve import Server, listen
from midwatch.domain.changes import Changes
from midwatch.domain.event import MessageDelta, TaskProgress, ToolExecEnd, event
from midwatch.domain.agent import TurnResult
from midwatch.agents.base import message_id
from midwatch.testing import ScriptedAgent

REPLY, STEPS, CONNECTIONS = map(int, sys.argv[2:])
published = {}

async def stream(turn):
    text, step = "x" * REPLY, REPLY // STEPS
    for offset in range(0, REPLY, step):
        await turn.emit(MessageDelta(message_id=message_id(turn), offset=offset, text=text[offset:offset + step]))
        await asyncio.sleep(0.005)
    return TurnResult(text=text)

async def write(desk, count, rate):
    began = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        told = event(TaskProgress(text=str(number)), desk.clock.now(), task_id="t_bench", session_key="bench")
        await desk.store.apply(Changes(events=(told,)))

async def fill(desk, count, length):
    read = ToolExecEnd(tool="read", tool_call_id="c", duration=0.1, for_llm_len=length, result=chr(0x1F600) * length)
    for _ in range(count):
        made = event(read, desk.clock.now(), task_id="t_bench", session_key="bench")
        await desk.store.apply(Changes(events=(made,)))

async def main():
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    settings = Settings.load(sys.argv[1], detect_agents=False, max_connections=CONNECTIONS)
    async with Runtime.open(settings=settings, agents={"stream": ScriptedAgent(stream)}, role="up") as desk:
        heard = desk.bus.receive_commit
        def noted(commit):
            now = time.time_ns()
            published.update((made.seq, now) for made in commit.events)
            heard(commit)
        desk.bus.receive_commit = noted
        app = create_app(desk)
        with listen("127.0.0.1", 0) as listener:
            url = "http://127.0.0.1:%d" % listener.getsockname()[1]
            server = Server(app, stopping, lambda: print(url, flush=True), Limits(connections=CONNECTIONS))
            serving = loop.create_task(server.serve([listener]))
            while not stopping.is_set():
                line = (await loop.run_in_executor(None, sys.stdin.readline)).split()
                if not line:
                    stopping.set()
                elif line[0] == "write":
                    await write(desk, int(line[1]), float(line[2]))
                    print("written", (await desk.store.read_log_bounds()).last_seq, flush=True)
                elif line[0] == "fill":
                    await fill(desk, int(line[1]), int(line[2]))
                    print("filled", flush=True)
                elif line[0] == "trim":  # so that memory that was free before does not hide the growth
                    gc.collect()
                    ctypes.CDLL(None).malloc_trim(0)
                    print("trimmed", flush=True)
                elif line[0] == "published":
                    print(json.dumps(published), flush=True)
                    published.clear()
            await serving

uvloop.run(main())
"""


class Reader(asyncio.Protocol):
    """One reader on a bare socket: it records when data arrives and parses it afterwards."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.chunks: list[tuple[int, bytes]] = []
        self.connected = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        self.transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self.chunks.append((time.time_ns(), data))
        if not self.connected.done() and b"still here" in data:
            self.connected.set_result(None)

    def arrivals(self) -> dict[int, int]:
        """Return the arrival time of each seq."""
        times: dict[int, int] = {}
        for at, data in self.chunks:
            for line in data.split(b"\n"):
                if line.startswith(b"id: "):
                    times[int(line[4:])] = at
        return times


class RunFigures(NamedTuple):
    """The figures of one run."""

    subscribers: int
    p50: float
    p99: float
    lost: int
    cores: float
    cpu_us: float
    others: float
    grown_mb: float


class Bench:
    """A server process and its clients."""

    def __init__(self, process: subprocess.Popen[str], url: str, token: str) -> None:
        self.process = process
        self.port = int(url.rpartition(":")[2])
        self.token = token
        self.usage = psutil.Process(process.pid)

    async def ask(self, line: str) -> str:
        """Send a command to the server process and return its answer."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    def head(self, path: str, *more: str) -> bytes:
        """Return a request."""
        lines = [f"GET /api/v1{path} HTTP/1.1", "host: localhost", f"authorization: Bearer {self.token}", *more]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def read(self, path: str) -> Reader:
        """Open a reader that follows a stream."""
        head = self.head(path, "accept: text/event-stream")
        _, reader = await asyncio.get_running_loop().create_connection(lambda: Reader(head), "127.0.0.1", self.port)
        await reader.connected
        return reader

    async def get(self, path: str) -> tuple[float, bytes]:
        """Send a plain request and return its milliseconds and the reply."""
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(self.head(path, "accept: application/json", "connection: close"))
        reply = await reader.read(-1)
        writer.close()
        return (time.perf_counter() - began) * 1000, reply

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a POST request."""
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = self.head(path, "content-type: application/json", f"content-length: {len(data)}", "connection: close")
        writer.write(head.replace(b"GET", b"POST", 1) + data)
        reply = await reader.read(-1)
        writer.close()
        record: dict[str, Any] = json.loads(reply.partition(b"\r\n\r\n")[2])
        return record


@contextmanager
def server(home: Path, connections: int = 1000) -> Iterator[Bench]:
    """Start a server and yield when it is ready; it is ended after the block."""
    command = [sys.executable, "-c", SERVER, str(home), str(REPLY), str(STEPS), str(connections)]
    env = {**os.environ, "MIDWATCH_HOME": str(home)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        yield Bench(process, url, (home / "token").read_text().strip())
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)


async def fan_out(bench: Bench, subscribers: int, seconds: float) -> RunFigures:
    """Measure the latency from commit to arrival, at 50 events a second."""
    readers = [await bench.read("/events?after=999999999") for _ in range(subscribers)]
    await bench.ask(f"write {RATE} {RATE}")  # warmed up, and past the gap frame of a position beyond the end
    await bench.ask("published")
    for reader in readers:
        reader.chunks.clear()
    memory = bench.usage.memory_info().rss
    mine = sum(psutil.Process().cpu_times()[:2])
    cpu, began, busy = sum(bench.usage.cpu_times()[:2]), time.perf_counter(), busy_seconds()
    await bench.ask(f"write {int(RATE * seconds)} {RATE}")
    published = {int(seq): at for seq, at in json.loads(await bench.ask("published")).items()}
    await asyncio.sleep(0.5)
    spent = time.perf_counter() - began
    used = sum(bench.usage.cpu_times()[:2]) - cpu
    late, lost = [], 0
    for reader in readers:
        arrivals = reader.arrivals()
        lost += len(published) - len(arrivals.keys() & published.keys())
        late += [(arrivals[seq] - at) / 1e6 for seq, at in published.items() if seq in arrivals]
        assert reader.transport is not None
        reader.transport.close()
    mine = sum(psutil.Process().cpu_times()[:2]) - mine
    other_cores = max(0.0, (busy_seconds() - busy - used - mine) / (time.perf_counter() - began))
    return RunFigures(
        subscribers=subscribers, p50=statistics.median(late), p99=percentile(late, 0.99), lost=lost,
        cores=used / spent, cpu_us=used / max(1, len(published) * subscribers) * 1e6,
        others=other_cores, grown_mb=(bench.usage.memory_info().rss - memory) / 1e6,
    )  # fmt: skip


async def measure_stream(bench: Bench) -> tuple[float, float]:
    """Return the bytes sent for a streamed reply as a multiple of its size, and the duration of plain requests
    meanwhile.
    """
    await bench.post("/sessions", {"agent": "stream", "key": "chat:bench"})
    reader = await bench.read("/sessions/chat%3Abench/live")
    reader.chunks.clear()
    await bench.post("/sessions/chat%3Abench/messages", {"text": "go on"})
    took = []
    while not any(b"event: task_finished" in data for _, data in reader.chunks[-5:]):
        took.append((await bench.get("/sessions/chat%3Abench/messages"))[0])
        await asyncio.sleep(0.02)
    assert reader.transport is not None
    reader.transport.close()
    return sum(len(data) for _, data in reader.chunks) / REPLY, percentile(took, 0.99)


async def measure_slow_readers(bench: Bench) -> float:
    """Return how many MB of the server's memory a reader costs that does not read: the most of all kinds of events.

    The buffers of the kernel are not included.
    """
    most, after = 0.0, 0
    for count, length in STORED:
        await bench.ask(f"fill {count} {length}")
        await bench.ask("trim")
        before = bench.usage.memory_info().rss
        with ExitStack() as ending:
            for _ in range(SLOW_READERS):
                reader = ending.enter_context(socket.socket())
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect(("127.0.0.1", bench.port))
                reader.sendall(bench.head(f"/events?after={after}&live=true", "accept: text/event-stream"))
            grown, now = -1, 0
            while now > grown:  # until it does not grow any more
                await asyncio.sleep(2)
                grown, now = now, bench.usage.memory_info().rss - before
            await bench.ask("trim")
            most = max(most, (bench.usage.memory_info().rss - before) / SLOW_READERS / 1e6)
        after += count
    return most


def raise_file_limit(files: int) -> None:
    """Allow this process and its children so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


async def main(seconds: float, subscribers: int, crowd: int) -> None:
    files = max(subscribers, crowd) + SPARE_FILES
    raise_file_limit(files)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, server(Path(folder), 2 * files) as bench:
        runs = [await fan_out(bench, count, seconds) for count in (1, subscribers, crowd)]
        ratio, get_p99 = await measure_stream(bench)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, server(Path(folder)) as bench:
        slow_reader_mb = await measure_slow_readers(bench)
    print_table(
        ["subscribers", "p50 ms", "p99 ms", "lost", "server cores", "CPU us each", "memory grown MB"],
        [
            [str(m.subscribers), f"{m.p50:.2f}", f"{m.p99:.2f}", str(m.lost), f"{m.cores:.2f}", f"{m.cpu_us:.1f}",
             f"{m.grown_mb:.1f}"] for m in runs
        ],
    )  # fmt: skip
    print(f"A reply of {REPLY} bytes in {STEPS} steps cost {ratio:.2f} times its size.")
    print(f"Requests for the conversation took p99 {get_p99:.1f} ms meanwhile.")
    print(f"A reader that does not read costs {slow_reader_mb:.2f} MB of the server's memory.")
    figures: dict[str, Any] = {"lost": sum(run.lost for run in runs)}
    for name, run in zip(("one", "many", "crowd"), runs, strict=True):
        figures |= {
            f"{name}_readers": run.subscribers, f"{name}_p50_ms": run.p50, f"{name}_p99_ms": run.p99,
            f"{name}_server_cores": run.cores, f"{name}_cpu_us_per_event": run.cpu_us,
            f"{name}_memory_grown_mb": run.grown_mb,
        }  # fmt: skip
    figures |= {"slow_reader_mb": slow_reader_mb, "wire_ratio": ratio, "get_during_turn_p99_ms": get_p99}
    for name, (target, at_least) in TARGETS.items():
        if (figures[name] < target) if at_least else (figures[name] > target):
            print(f"MISSED: {name} is {figures[name]:.3g}, the target is {target}.")
    if (others := max(run.others for run in runs)) > NOISY_CORES:
        print(f"DISTURBED: other processes used up to {others:.2f} cores.")
    print(json_line(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--subscribers", type=int, default=500)
    parser.add_argument("--crowd", type=int, default=2000)
    chosen = parser.parse_args()
    uvloop.run(main(chosen.seconds, chosen.subscribers, chosen.crowd))
