"""Measure the time that `midwatch agentapi server` adds to a turn: `make bench-agentapi`.

A fake agent notes when it has read a message and when it has written its answer. The first figure is the time from POST
/message until the agent has read the message. The second is the time from the agent's answer until a client reads the
status `stable`. The benchmark prints a table, a sentence for every missed target, and one JSON object as its last line.
It fails if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.harness import clean_environment, json_line, print_table, process

AGENT = Path(__file__).parents[1] / "tests" / "fakes" / "echo_agent.py"
PROGRAM = Path(sys.executable).with_name("midwatch")
WAYS = {
    "custom": ("terminal", ()),
    "claude": ("claude", ("--type", "claude")),
    "acp": ("acp", ("--experimental-acp",)),
}
"""For each kind of agent: how the fake agent talks, and the flags of the server."""
TARGET = 0.2
TURN_SECONDS = 30.0


class Notes:
    """The file in which the agent notes the times of what it does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def wait_for(self, what: str, count: int) -> float:
        """Return when something happened for the time number `count`."""
        while True:
            lines = self.path.read_text().splitlines() if self.path.exists() else []
            times = [line.split()[1] for line in lines if line.startswith(what)]
            if len(times) >= count:
                return float(times[count - 1])
            await asyncio.sleep(0.005)


class Statuses:
    """The statuses that a client of the server reads, with their times."""

    def __init__(self) -> None:
        self._stable_at: asyncio.Queue[float] = asyncio.Queue()

    async def read(self, http: httpx2.AsyncClient) -> None:
        """Read the server's stream of events."""
        async with http.stream("GET", "/events", timeout=None) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: ") and json.loads(line[6:]).get("status") == "stable":
                    self._stable_at.put_nowait(time.time())

    async def wait(self) -> float:
        """Return when the next status `stable` was read."""
        return await self._stable_at.get()


async def measure(way: str, turns: int, folder: Path) -> dict[str, Any]:
    """Return the figures of some turns with one kind of agent."""
    talk, flags = WAYS[way]
    script, notes = folder / f"{way}.json", Notes(folder / f"{way}.txt")
    numbers = range(turns + 1)  # the agent still reads after the last turn
    entries = [{"expectMessage": f"message {n}", "responseMessage": f"answer {n}"} for n in numbers]
    script.write_text(json.dumps(entries))
    agent = [sys.executable, "-I", "-S", str(AGENT), talk, str(script)]
    command = [str(PROGRAM), "agentapi", "server", "--port", "0", "--json", *flags, "--", *agent]
    env = {**clean_environment(), "ECHO_NOTES": str(notes.path), "TMPDIR": str(folder)}
    with process(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env) as server:
        assert server.stdout is not None
        url = json.loads(await asyncio.to_thread(server.stdout.readline))["url"]
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60.0) as http:
            statuses = Statuses()
            reading = asyncio.create_task(statuses.read(http))
            sent, finished = [], []
            async with asyncio.timeout(60 + turns * TURN_SECONDS):
                await statuses.wait()
                for number in range(turns):
                    began = time.time()
                    reply = await http.post("/message", json={"content": f"message {number}", "type": "user"})
                    assert reply.status_code == 200, reply.text
                    sent.append(await notes.wait_for("read", number + 1) - began)
                    stable = await statuses.wait()
                    finished.append(stable - await notes.wait_for("wrote", number + 1))
                messages = [message["content"] for message in (await http.get("/messages")).json()["messages"]]
            reading.cancel()
        server.terminate()
        await asyncio.to_thread(server.wait, 30)
    assert messages[-2 * turns :] == [text for n in range(turns) for text in (f"message {n}", f"answer {n}")], messages
    return {
        "sent_p50_s": statistics.median(sent[1:]), "sent_max_s": max(sent[1:]),
        "finished_p50_s": statistics.median(finished[1:]), "finished_max_s": max(finished[1:]),
    }  # fmt: skip


def main() -> None:
    """Measure all kinds of agents and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20, help="turns of each kind; the first is not counted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        figures = {way: asyncio.run(measure(way, max(options.turns, 2), Path(folder))) for way in WAYS}
    rows = [(way, *(f"{value * 1000:.0f} ms" for value in of.values())) for way, of in figures.items()]
    print_table(("agent", "message p50", "message max", "stable p50", "stable max"), rows)
    missed = [(way, name) for way, of in figures.items() for name in of if "p50" in name and of[name] > TARGET]
    for way, name in missed:
        print(f"{way}: {name} is {figures[way][name]:.3f} s; the target is {TARGET} s.")
    print(json_line({f"{way}_{name}": value for way, of in figures.items() for name, value in of.items()}))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
