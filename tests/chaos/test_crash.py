"""Test a server that is killed again and again under load: nothing is lost, nothing is done twice, and no agent
survives.

The oracle is outside of the product: a file the agents write, the acknowledgements of the clients, and the events of a
follower over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx2
import pytest

from internals import engine_of
from midwatch import Runtime
from servers import PATIENCE, Server, eventually, processes_with

CLIENTS = 20
MARK = f"MIDWATCH_CHAOS={uuid.uuid4().hex}"
CONFIG = """
slots = 64
max_open = 100000
detect_agents = false

[agents.once]
kind = "command"
argv = ["sh", "-c", "{script}", "agent", "{{prompt}}"]
on_crash = "fail"
slots = 24
env = {{ MIDWATCH_CHAOS = "{mark}", ORACLE = "{oracle}" }}

[agents.again]
kind = "command"
argv = ["sh", "-c", "{script}", "agent", "{{prompt}}"]
on_crash = "rerun"
slots = 24
env = {{ MIDWATCH_CHAOS = "{mark}", ORACLE = "{oracle}" }}
"""
SAY = 'echo \\"$MIDWATCH_TASK %s\\" >> \\"$ORACLE\\"'
SCRIPT = f'{SAY % "start"}; sleep \\"$1\\"; {SAY % "end"}; echo ok'


def make_home(tmp_path: Path) -> tuple[Path, Path]:
    """Make a home with two agents that write to the oracle file."""
    home, oracle = tmp_path / "home", tmp_path / "oracle"
    home.mkdir()
    oracle.touch()
    (home / "midwatch.toml").write_text(CONFIG.format(script=SCRIPT, oracle=oracle, mark=MARK.partition("=")[2]))
    return home, oracle


def runs(oracle: Path) -> dict[str, dict[int, list[str]]]:
    """Return the lines of the agents by task and attempt."""
    attempts: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in oracle.read_text().splitlines():
        who, what = line.split()
        task, attempt = who.split("/")
        attempts[task][int(attempt)].append(what)
    return attempts


def in_flight(oracle: Path) -> int:
    """Return the number of agents that have started and not ended."""
    return sum(lines == ["start"] for attempts in runs(oracle).values() for lines in attempts.values())


async def client(server: Server, number: int, until: float, accepted: dict[str, str], rng: random.Random) -> None:
    """Submit tasks, each with a key, until time is up; repeat requests that were not acknowledged."""
    count = 0
    async with server.client() as http:
        while time.monotonic() < until:
            count += 1
            agent = rng.choice(("once", "again"))
            body = {"prompt": f"{rng.uniform(0.5, 3.0):.2f}", "agent": agent, "idempotency_key": f"{number}-{count}"}
            while True:
                try:
                    answer = await http.post("/tasks", json=body)
                except httpx2.HTTPError:
                    await asyncio.sleep(0.1)
                    continue
                assert answer.status_code == 201, answer.text
                accepted[answer.json()["id"]] = agent
                break
            await asyncio.sleep(rng.uniform(0.2, 1.2))


async def follow(server: Server, events: list[dict[str, Any]], stop: asyncio.Event) -> None:
    """Follow the log over SSE, and resume by event id after each crash."""
    async with server.client() as http:
        while not stop.is_set():
            after = {"Last-Event-ID": str(events[-1]["seq"])} if events else {}
            try:
                async with http.stream("GET", "/events", headers=after, timeout=None) as stream:
                    async for line in stream.aiter_lines():
                        if line.startswith("data:"):
                            events.append(json.loads(line[5:]))
                        if stop.is_set():
                            return
            except httpx2.HTTPError:
                await asyncio.sleep(0.05)


async def wait_for_all_ends(server: Server) -> dict[str, Any]:
    """Return the counts once no task is open."""
    async with server.client() as http:
        while True:
            counts: dict[str, Any] = (await http.get("/summary")).json()
            if counts["pending"] + counts["running"] == 0:
                return counts
            await asyncio.sleep(0.2)


def check(accepted: dict[str, str], events: list[dict[str, Any]], tasks: dict[str, Any], oracle: Path) -> None:
    """Check everything that must hold, from outside of the product."""
    seqs = [event["seq"] for event in events]
    assert seqs == list(range(1, len(seqs) + 1)), "the followed log has holes or repeats"
    finishes = Counter(e["task_id"] for e in events if e["kind"] == "task_finished")
    assert set(finishes) >= set(accepted), "an accepted task never ended"
    assert set(finishes.values()) == {1}, "a task ended more than once"
    written = runs(oracle)
    for task_id, agent in accepted.items():
        attempts = written.get(task_id, {})
        task = tasks[task_id]
        assert all(lines in (["start"], ["start", "end"]) for lines in attempts.values()), attempts
        if agent == "once":
            assert len(attempts) <= 1, f"{task_id} ran twice under on_crash = fail"
        if task["status"] == "done":
            assert attempts[task["attempt"]] == ["start", "end"], f"{task_id} is done but its agent did not end"
        else:
            assert (task["status"], task["outcome"]) == ("failed", "lost"), task
            assert agent == "once" or task["rescues"] >= 5
    for family in ("turn", "tool_exec"):
        starts = Counter(e["turn_id"] for e in events if e["kind"] == f"{family}_start")
        ends = Counter(e["turn_id"] for e in events if e["kind"] == f"{family}_end")
        assert starts == ends, f"{family} events are not balanced"


@pytest.mark.timeout(3600)
async def test_a_server_survives_repeated_kills(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seconds = float(pytestconfig.getoption("--chaos-seconds"))
    rng = random.Random(seed := random.randrange(10**6))
    home, oracle = make_home(tmp_path)
    server = Server(home)
    accepted: dict[str, str] = {}
    events: list[dict[str, Any]] = []
    kills = hits = cut = 0
    await server.start()
    until = time.monotonic() + seconds
    stop = asyncio.Event()
    follower = asyncio.create_task(follow(server, events, stop))
    clients = [asyncio.create_task(client(server, n, until, accepted, random.Random(seed + n))) for n in range(CLIENTS)]
    try:
        while time.monotonic() < until:
            await asyncio.sleep(rng.uniform(0.3, 5.0))
            await server.kill()
            kills += 1
            cut, before = in_flight(oracle), cut
            hits += cut > before  # an interrupted agent has started and never ends
            assert await eventually(lambda: not processes_with(MARK)), "an agent outlived its server"
            await server.start()
        await asyncio.gather(*clients)
        counts = await asyncio.wait_for(wait_for_all_ends(server), 600)
        async with server.client() as http:
            tasks = {i: (await http.get(f"/tasks/{i}")).json() for i in accepted}
            last = (await http.get("/events", params={"after": 0}, headers={"Accept": "application/json"})).json()
        assert await eventually(lambda: bool(events) and events[-1]["seq"] >= last["last_seq"])
    finally:
        stop.set()
        follower.cancel()
        for running_client in clients:
            running_client.cancel()
        await asyncio.gather(follower, *clients, return_exceptions=True)
        status = await server.stop()
    print(
        f"\nchaos: seed {seed}, {seconds:.0f} s, {CLIENTS} clients, {len(accepted)} accepted, {counts['done']} done, "
        f"{counts['failed']} lost, {kills} kills, {hits} hit a running turn ({hits / kills:.0%}), {len(events)} events"
    )
    check(accepted, events, tasks, oracle)
    assert status == 0
    assert hits / kills >= 0.3
    assert await eventually(lambda: not processes_with(MARK)), "an agent outlived its server"


@pytest.mark.timeout(180)
async def test_a_stopped_server_is_not_treated_as_dead(tmp_path: Path) -> None:
    """Another process leads and checks every second whether the server is alive; time alone proves nothing."""
    home, _ = make_home(tmp_path)
    async with Runtime.open(home) as leader:
        assert engine_of(leader).leads()
        server = Server(home)
        await server.start()
        try:
            async with server.client() as http:
                task = (await http.post("/tasks", json={"prompt": "10", "agent": "again"})).json()
                deadline = time.monotonic() + PATIENCE
                while (await leader.tasks.get(task["id"])).status != "running":
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
                server.signal(signal.SIGSTOP)
                await asyncio.sleep(30)
                assert (await leader.tasks.get(task["id"])).status == "running"
                server.signal(signal.SIGCONT)
                async with asyncio.timeout(PATIENCE):
                    ended_task = await leader.tasks.wait(task["id"])
                assert (ended_task.status, ended_task.attempt, ended_task.rescues) == ("done", 1, 0)
        finally:
            server.signal(signal.SIGCONT)
            await server.stop()
