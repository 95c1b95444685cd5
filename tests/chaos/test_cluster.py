"""Test two servers and three workers on one PostgreSQL that are killed, stopped and disconnected under load.

The oracle is the same as for one server: a file the agents write, the acknowledgements, and the events of a follower.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import time
import uuid
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from postgres import Cluster, cluster
from servers import PATIENCE, Server, WorkerProcess, eventually, processes_with

CLIENTS = 12
STOP_SECONDS = 20
MARK = f"MIDWATCH_CHAOS={uuid.uuid4().hex}"
CONFIG = """
db = "{url}"
slots = 24
max_open = 100000
detect_agents = false
shutdown_grace = 0

[agents.once]
kind = "command"
argv = ["sh", "-c", '{script}', "agent", "{{prompt}}"]
on_crash = "fail"
slots = 8
env = {{ MIDWATCH_CHAOS = "{mark}", ORACLE = "{oracle}" }}

[agents.again]
kind = "command"
argv = ["sh", "-c", '{script}', "agent", "{{prompt}}"]
on_crash = "rerun"
slots = 8
env = {{ MIDWATCH_CHAOS = "{mark}", ORACLE = "{oracle}" }}
"""
SAY = 'echo "$MIDWATCH_TASK %s $(date +%%s%%N)" >> "$ORACLE"'
SCRIPT = f'{SAY % "start"}; sleep "$1"; {SAY % "end"}; echo ok'


class Desk:
    """All processes of the test."""

    def __init__(self, folder: Path, url: str) -> None:
        self.oracle = folder / "oracle"
        self.oracle.touch()
        homes = [folder / name for name in ("s1", "s2", "w1", "w2", "w3")]
        text = CONFIG.format(url=url, script=SCRIPT, oracle=self.oracle, mark=MARK.partition("=")[2])
        for home in homes:
            home.mkdir()
            (home / "midwatch.toml").write_text(text)
        self.servers = [Server(home) for home in homes[:2]]
        self.workers = [WorkerProcess(home) for home in homes[2:]]
        self.stopped: WorkerProcess | None = None
        self.done: Counter[str] = Counter()

    async def start(self) -> None:
        for server in self.servers:
            await server.start()
        for worker in self.workers:
            worker.start()

    async def stop(self) -> None:
        for process in (*self.workers, *self.servers):
            await process.stop()

    async def harm(self, rng: random.Random, elapsed: float, seconds: float, database: Cluster) -> None:
        """Do random harm; a long stop and a restart of the database happen at least once each."""
        chance = rng.random()
        if self.stopped is None and (chance < 0.1 or (not self.done["stops"] and elapsed > seconds * 0.2)):
            self.done["stops"] += 1
            self.stopped = rng.choice(self.workers)
            self.stopped.signal(signal.SIGSTOP)
            asyncio.get_running_loop().call_later(STOP_SECONDS, self._continue_process)
        elif chance > 0.9 or (not self.done["restarts"] and elapsed > seconds * 0.5):
            self.done["restarts"] += 1
            await asyncio.to_thread(database.stop, rng.choice(("fast", "immediate")))
            await asyncio.sleep(rng.uniform(0, 3))
            await asyncio.to_thread(database.start)
        elif chance < 0.6:
            self.done["worker kills"] += 1
            worker = rng.choice([candidate for candidate in self.workers if candidate is not self.stopped])
            await worker.kill()
            worker.start()
        else:
            self.done["server kills"] += 1
            server = rng.choice(self.servers)
            await server.kill()
            await server.start()

    def _continue_process(self) -> None:
        assert self.stopped is not None
        with suppress(ProcessLookupError):  # the test has ended
            self.stopped.signal(signal.SIGCONT)
        self.stopped = None


async def client(
    desk: Desk, number: int, until: float, accepted: dict[str, dict[str, Any]], rng: random.Random
) -> None:
    """Submit tasks to either server, each with a key, and repeat each request until it is acknowledged."""
    count = 0
    while time.monotonic() < until:
        count += 1
        agent = rng.choice(("once", "again"))
        body = {"prompt": f"{rng.uniform(0.3, 2.0):.2f}", "agent": agent, "idempotency_key": f"{number}-{count}"}
        if rng.random() < 0.3:
            body["session_key"] = f"chat:{rng.randrange(4)}"
        while True:
            try:
                async with rng.choice(desk.servers).client() as http:
                    answer = await http.post("/tasks", json=body)
            except httpx2.HTTPError:
                await asyncio.sleep(0.2)
                continue
            if answer.status_code == 503:
                await asyncio.sleep(0.2)
                continue
            assert answer.status_code == 201, answer.text
            accepted[answer.json()["id"]] = body
            break
        await asyncio.sleep(rng.uniform(0.5, 2.0))


async def follow(desk: Desk, events: list[dict[str, Any]], stop: asyncio.Event) -> None:
    """Follow the log at any server that answers, and resume by event id."""
    turn = 0
    while not stop.is_set():
        turn += 1
        after = {"Last-Event-ID": str(events[-1]["seq"])} if events else {}
        try:
            async with (
                desk.servers[turn % 2].client() as http,
                http.stream("GET", "/events", headers=after, timeout=httpx2.Timeout(5, read=20)) as stream,
            ):
                async for line in stream.aiter_lines():
                    if line.startswith("data:"):
                        events.append(json.loads(line[5:]))  # noqa: PERF401 - each must be there when the stream breaks
        except httpx2.HTTPError:
            await asyncio.sleep(0.1)


async def get_json(http: httpx2.AsyncClient, path: str, **options: Any) -> Any:
    """Return the reply of the server as soon as it can answer: its database may have just returned."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(httpx2.HTTPError):
                answer = await http.get(path, **options)
                if answer.status_code != 503:
                    assert answer.status_code == 200, answer.text
                    return answer.json()
            await asyncio.sleep(0.2)


async def wait_for_all_ends(desk: Desk) -> None:
    """Wait until no task is open."""
    async with desk.servers[0].client() as http:
        while True:
            counts = await get_json(http, "/summary")
            if counts["pending"] + counts["running"] == 0:
                return
            await asyncio.sleep(0.2)


def runs(oracle: Path) -> dict[str, dict[int, dict[str, int]]]:
    """Return by task and attempt when its agent started and ended."""
    attempts: dict[str, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    for line in oracle.read_text().splitlines():
        who, what, when = line.split()
        task, attempt = who.split("/")
        assert what not in attempts[task][int(attempt)], f"{who} {what} twice"
        attempts[task][int(attempt)][what] = int(when)
    return attempts


def check(desk: Desk, accepted: dict[str, Any], events: list[dict[str, Any]], tasks: dict[str, Any]) -> None:
    """Check everything that must hold, from outside of the product."""
    seqs = [event["seq"] for event in events]
    assert seqs == list(range(1, len(seqs) + 1)), "the followed log has holes or repeats"
    finishes = Counter(e["task_id"] for e in events if e["kind"] == "task_finished")
    assert set(finishes) >= set(accepted), "an accepted task never ended"
    assert set(finishes.values()) == {1}, "a task ended more than once"
    written = runs(desk.oracle)
    gates: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for task_id, body in accepted.items():
        attempts, task = written.get(task_id, {}), tasks[task_id]
        if body["agent"] == "once":
            assert len(attempts) <= 1, f"{task_id} ran twice under on_crash = fail"
        if task["status"] == "done":
            run = attempts[task["attempt"]]
            assert set(run) == {"start", "end"}, f"{task_id} is done but its agent did not end"
            if "session_key" in body:
                gates[body["session_key"]].append((run["start"], run["end"]))
        else:
            assert task["status"] == "failed", task
            assert body["agent"] == "once" or task["rescues"] >= 5 or task["outcome"] == "error", task
    for family in ("turn", "tool_exec"):
        starts = Counter(e["turn_id"] for e in events if e["kind"] == f"{family}_start")
        ends = Counter(e["turn_id"] for e in events if e["kind"] == f"{family}_end")
        assert starts == ends, f"{family} events are not balanced"
    for gate, spans in gates.items():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start, f"two agents worked at once in {gate} and both got a result in"


@pytest.mark.timeout(3600)
async def test_a_cluster_survives_kills_stops_and_lost_connections(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seconds = float(pytestconfig.getoption("--chaos-seconds"))
    rng = random.Random(seed := random.randrange(10**6))
    accepted: dict[str, dict[str, Any]] = {}
    events: list[dict[str, Any]] = []
    stop = asyncio.Event()
    with cluster() as database:
        desk = Desk(tmp_path, database.url)
        await desk.start()
        began = time.monotonic()
        until = began + seconds
        follower = asyncio.create_task(follow(desk, events, stop))
        clients = [
            asyncio.create_task(client(desk, n, until, accepted, random.Random(seed + n))) for n in range(CLIENTS)
        ]
        try:
            while time.monotonic() < until:
                await asyncio.sleep(rng.uniform(2.0, 6.0))
                await desk.harm(rng, time.monotonic() - began, seconds, database)
            await asyncio.gather(*clients)
            await asyncio.wait_for(wait_for_all_ends(desk), 600)
            async with desk.servers[0].client() as http:
                tasks = {i: await get_json(http, f"/tasks/{i}") for i in accepted}
                last = await get_json(http, "/events", params={"after": 0}, headers={"Accept": "application/json"})
            assert await eventually(lambda: bool(events) and events[-1]["seq"] >= last["last_seq"], 120)
        finally:
            stop.set()
            follower.cancel()
            for running_client in clients:
                running_client.cancel()
            await asyncio.gather(follower, *clients, return_exceptions=True)
            await desk.stop()
    outcomes = Counter(f"{task['status']}:{task['outcome']}" for task in tasks.values())
    print(
        f"\ncluster chaos: seed {seed}, {seconds:.0f} s, {len(accepted)} accepted, {dict(outcomes)}, {dict(desk.done)}"
    )
    print(f"cluster chaos: {len(events)} events followed, {sum(t['rescues'] for t in tasks.values())} rescues")
    check(desk, accepted, events, tasks)
    assert await eventually(lambda: not processes_with(MARK)), "an agent outlived its process"
