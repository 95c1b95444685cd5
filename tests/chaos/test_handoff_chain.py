"""Test a job through agents of four kinds and back, with the server killed at every step.

Two crews do the same: one whose agents may start again, which must always return the answer, and one whose programs
must not run twice, which returns it or fails cleanly. Nothing is done twice, and no process remains.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fakes.model_server import serve
from midwatch import Runtime, Task, TaskFilter
from midwatch.domain.event import Event, EventFilter
from midwatch.domain.handoff import OPEN, TRANSITIONS, Handoff, HandoffFilter
from servers import Server, eventually, processes_with

MARK = f"MIDWATCH_CHAOS=chain{os.getpid()}"
CREWS = {"sturdy": "rerun", "fragile": "fail"}
HOPS = ("lead", "program", "model", "screen")
ANSWER = "lead heard: The tool said: you said ping"
LEAD = """
async def work(prompt, turn):
    crew = turn.prompt.split("_")[-1].split()[0]
    made = await turn.delegate(f"program-{crew}", prompt, timeout=500)
    return f"lead heard: {made.output}"
"""
ECHO = "while True: print('you said', input('> '), flush=True)"
CLI = "from midwatch.cli.main import main; main()"
PASS_ON = 'exec "$0" -c "$1" handoff to "$2" - --wait --timeout 400s --key "${MIDWATCH_TASK%/*}"'
POINTS = (
    ("task_started lead", "handoff_started program"), ("task_started program", "handoff_started model"),
    ("task_started model",), ("handoff_started screen", "task_started screen"), ("task_finished screen",),
    ("handoff_completed model",), ("task_finished program", "handoff_completed program"), ("task_finished lead",),
)  # fmt: skip
"""The events after which the server is killed, in the order of the job: one of each row."""
ENDS = {f"handoff_{status}" for status, following in TRANSITIONS.items() if not following}
JOBS = 2
"""Several jobs share these points: no job has more crashes than a task may be recovered from."""


def make_config(url: str, folder: Path) -> str:
    """Return the agents of both crews."""
    env = {"MIDWATCH_CHAOS": MARK.partition("=")[2]}
    agents: dict[str, dict[str, Any]] = {}
    for crew, on_crash in CREWS.items():
        argv = ["sh", "-c", PASS_ON, sys.executable, CLI, f"model-{crew}"]
        agents |= {
            f"lead-{crew}": {"kind": "function", "target": "chaos_lead:work", "path": str(folder), "env": env},
            f"program-{crew}": {"argv": argv, "submits": True, "on_crash": on_crash, "env": env},
            f"model-{crew}": {
                "kind": "llm", "model": "openai:fake", "base_url": f"{url}/v1", "delegates": [f"screen-{crew}"],
            },
            f"screen-{crew}": {
                "kind": "terminal", "argv": [sys.executable, "-c", ECHO], "prompt": "^> $", "on_crash": on_crash,
                "env": env,
            },
        }  # fmt: skip
    lines = ["detect_agents = false", "slots = 4"]
    for name, options in agents.items():
        lines.append(f"[agents.{name}]")
        for key, value in options.items():
            table = "{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in env.items()) + " }"
            lines.append(f"{key} = {table if key == 'env' else json.dumps(value)}")
    return "\n".join(lines) + "\n"


async def follow_events(server: Server, after: int) -> AsyncIterator[dict[str, Any]]:
    """Yield events as they happen."""
    async with (
        server.client() as http,
        http.stream("GET", "/events", headers={"Last-Event-ID": str(after)}, timeout=None) as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("data:"):
                yield json.loads(line[5:])


async def submit_job(server: Server, crew: str, jobs: dict[str, str]) -> int:
    """Submit a job for a crew and return the last seq of the log before."""
    async with server.client() as http:
        page = await http.get("/events", params={"after": 0, "limit": 1}, headers={"Accept": "application/json"})
        prompt = f'[[tool delegate_to_screen_{crew} {{"task": "ping"}}]]'
        reply = await http.post("/tasks", json={"prompt": prompt, "agent": f"lead-{crew}"})
        assert reply.status_code == 201, reply.text
        jobs[reply.json()["id"]] = crew
        last: int = page.json()["last_seq"]
        return last


async def wait_for_point(server: Server, point: str, after: int) -> None:
    """Return when the job of the sturdy crew has reached the point."""
    kind, who = point.split()
    async with asyncio.timeout(120):
        async for event in follow_events(server, after):
            agent = event["payload"].get("to_agent") if kind.startswith("handoff") else event["agent_id"]
            if event["kind"] == kind and agent == f"{who}-sturdy":
                return


async def wait_until_idle(server: Server) -> None:
    """Return when no task is open."""
    async with asyncio.timeout(300), server.client() as http:
        while (counts := (await http.get("/summary")).json())["pending"] + counts["running"]:
            await asyncio.sleep(0.1)


def check_records(handoffs: list[Handoff], tasks: dict[str, Task]) -> None:
    """Check that each handoff has ended in a valid status and nothing was created twice."""
    assert not [handoff.id for handoff in handoffs if handoff.status in OPEN or TRANSITIONS[handoff.status]]
    assert not [task.id for task in tasks.values() if task.open]
    children = Counter(task.cause_id for task in tasks.values() if task.cause == "handoff")
    assert max(children.values()) == 1
    for handoff in handoffs:
        assert (handoff.task_id in tasks) == (handoff.id in children)
        assert handoff.status != "completed" or tasks[handoff.task_id or ""].status == "done"
    starts = Counter((handoff.source_task, handoff.to_agent) for handoff in handoffs if handoff.task_id)
    assert max(starts.values()) == 1, "a source handed the same over twice"


async def read_log(desk: Runtime) -> AsyncIterator[Event]:
    """Return the log."""
    last = 0
    while page := await desk.store.read_events(last, EventFilter(), 500):
        for event in page:
            yield event
        last = page[-1].seq


async def check_answers(desk: Runtime, jobs: dict[str, str]) -> Counter[str]:
    """Check that each source has one answer or one clean failure, and count both."""
    counts: Counter[str] = Counter()
    tasks = {task.id: task for task in await desk.tasks.list(TaskFilter(limit=500))}
    handoffs = await desk.handoffs.list(HandoffFilter(limit=500))
    check_records(handoffs, tasks)
    events = [event async for event in read_log(desk)]
    ends = Counter(event.task_id for event in events if event.kind == "task_finished")
    assert ends == Counter(tasks.keys())
    ends = Counter(event.payload["handoff_id"] for event in events if event.kind in ENDS)
    assert ends == Counter(handoff.id for handoff in handoffs)
    for task_id, crew in jobs.items():
        task = tasks[task_id]
        way = sorted(
            (handoff for handoff in handoffs if handoff.root_id == task_id and handoff.task_id),
            key=lambda handoff: len(handoff.chain),
        )
        if (task.result or "").strip() == ANSWER:
            hops = [(handoff.from_agent, handoff.to_agent, handoff.status) for handoff in way]
            assert hops == [(f"{here}-{crew}", f"{there}-{crew}", "completed") for here, there in pairwise(HOPS)]
            counts[f"{crew} answered"] += 1
        else:
            assert crew == "fragile", (task.status, task.outcome, task.error, task.result)
            lost = [
                lost_task
                for lost_task in tasks.values()
                if lost_task.root_id == task_id and lost_task.outcome == "lost"
            ]
            assert lost and "lost" not in (task.outcome or ""), (task.outcome, task.error, task.result)
            counts[f"lost with {lost[0].agent}"] += 1
    return counts


@pytest.mark.timeout(1200)
async def test_a_chain_of_four_agents_ends_once_wherever_the_server_is_killed(tmp_path: Path) -> None:
    rng = random.Random(seed := random.randrange(10**6))
    print(f"\nchain: seed {seed}")
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "chaos_lead.py").write_text(LEAD)
    jobs: dict[str, str] = {}
    async with serve() as (url, _):
        (home / "midwatch.toml").write_text(make_config(url, tmp_path))
        server = Server(home, OPENAI_API_KEY="x")
        await server.start()
        try:
            for first in range(JOBS):
                began = await submit_job(server, "sturdy", jobs)
                for points in POINTS[first::JOBS]:
                    await submit_job(server, "fragile", jobs)
                    await wait_for_point(server, rng.choice(points), began)
                    await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, 0.4))))  # random, not synchronisation
                    await server.kill()
                    assert await eventually(lambda: not processes_with(MARK)), "an agent outlived its server"
                    await server.start()
                await wait_until_idle(server)
        finally:
            assert await server.stop() == 0
    async with Runtime.open(home, work=False) as desk:
        counts = await check_answers(desk, jobs)
    print(f"chain: {len(POINTS)} kills, {dict(counts)}")
    assert await eventually(lambda: not processes_with(MARK)), "an agent outlived its server"
