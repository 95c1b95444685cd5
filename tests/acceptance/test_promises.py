"""Test promises about time, processes and misbehaving agents with a real server and real processes."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from midwatch import Runtime
from servers import Server, eventually, processes_with

MARK = f"MIDWATCH_PROMISE={uuid.uuid4().hex}"
"""The mark of this test process: another one may run the same tests at the same time."""
CONFIG = """
detect_agents = false
[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
on_crash = "rerun"
slots = 8
env = { MIDWATCH_PROMISE = "MARKED" }
[agents.careful]
kind = "command"
argv = ["sh", "-c", "{prompt}"]
env = { MIDWATCH_PROMISE = "MARKED" }
"""
STUBBORN = "trap '' INT TERM; (trap '' INT TERM; touch {mark}; sleep 60) & sleep 60"
SOON = 10.0
"""Seconds. Usually it takes a fraction of one second; without an early end it would take a minute."""
LEAVE_GROUP = "setsid sleep 60 > /dev/null 2>&1 & sleep 60"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """Start a server with two shell agents."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG.replace("MARKED", MARK.partition("=")[2]))
    server = Server(home)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        assert await eventually(lambda: not processes_with(MARK))


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield the owner's client."""
    async with server.client() as client:
        yield client


async def submit(http: httpx2.AsyncClient, prompt: str, **fields: Any) -> dict[str, Any]:
    answer = await http.post("/tasks", json={"prompt": prompt, "agent": "shell", **fields})
    assert answer.status_code == 201, answer.text
    task: dict[str, Any] = answer.json()
    return task


async def wait_for_end(http: httpx2.AsyncClient, task: dict[str, Any], seconds: float = 60) -> dict[str, Any]:
    """Return the task once it has ended."""
    async with asyncio.timeout(seconds):
        while True:
            current: dict[str, Any] = (await http.get(f"/tasks/{task['id']}")).json()
            if current["status"] not in ("pending", "running"):
                return current
            await asyncio.sleep(0.01)


async def wait_for_agents(number: int = 1) -> None:
    """Wait until so many agent processes run."""
    assert await eventually(lambda: len(processes_with(MARK)) >= number)


async def test_a_timeout_ends_the_whole_process_group_quickly(
    server: Server, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    mark = tmp_path / "both-are-there"
    for timeout in (0.5, 5.0, 30.0):  # a slow machine may not start both at once
        task = await submit(http, STUBBORN.format(mark=mark), timeout=timeout, route="console", notices="all")
        ended_task = await wait_for_end(http, task)
        assert (ended_task["status"], ended_task["outcome"]) == ("failed", "timeout")
        assert not processes_with(MARK)
        assert _get_seconds(ended_task) < timeout + SOON
        if mark.exists():
            break
    assert mark.exists()
    sent = (await http.get("/deliveries", params={"task_id": task["id"]})).json()["deliveries"]
    assert {d["notice"] for d in sent} == {"started", "timed_out"}


def _get_seconds(task: dict[str, Any]) -> float:
    from datetime import datetime

    start, stop = (datetime.fromisoformat(task[name]) for name in ("started_at", "completed_at"))
    return (stop - start).total_seconds()


async def test_a_cancel_written_to_the_store_takes_effect_quickly(server: Server, http: httpx2.AsyncClient) -> None:
    task = await submit(http, "sleep 60")
    await wait_for_agents()
    async with Runtime.open(server.home, work=False) as runtime:
        began = time.monotonic()
        await runtime.tasks.cancel(task["id"])
        ended_task = await wait_for_end(http, task)
        spent = time.monotonic() - began
    assert ended_task["status"] == "cancelled"
    assert not processes_with(MARK)
    assert spent < SOON


async def test_an_agent_that_ignores_signals_is_killed(
    server: Server, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    task = await submit(http, STUBBORN.format(mark=tmp_path / "mark"))
    await wait_for_agents(2)
    await http.post(f"/tasks/{task['id']}/cancel")
    ended_task = await wait_for_end(http, task)
    assert ended_task["status"] == "cancelled"
    assert not processes_with(MARK)


async def test_a_flood_of_output_does_not_harm_the_server(server: Server, http: httpx2.AsyncClient) -> None:
    task = await submit(http, "head -c 50000000 /dev/zero | tr '\\0' x; echo end >&2")
    slowest = 0.0
    while (await http.get(f"/tasks/{task['id']}")).json()["status"] in ("pending", "running"):
        began = time.monotonic()
        assert (await http.get("/health")).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
    ended_task = await wait_for_end(http, task)
    assert ended_task["status"] == "done"
    assert 1_000_000 < len(ended_task["result"]) < 11_000_000
    assert "left out" in ended_task["result"]
    assert slowest < SOON


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("exit 3", "3"),
        ("kill -SEGV $$", "SEGV"),
        ("printf '\\377\\376\\000oops'; exit 1", "oops"),
        ("exec nosuchprogram", "nosuchprogram"),
    ],
)
async def test_a_failing_agent_reports_its_error(http: httpx2.AsyncClient, prompt: str, said: str) -> None:
    task = await wait_for_end(http, await submit(http, prompt))
    assert (task["status"], task["outcome"]) == ("failed", "error")
    assert said in task["error"]


@pytest.mark.parametrize(("agent", "status"), [("shell", "done"), ("careful", "failed")])
async def test_a_killed_server_leaves_no_agent_and_its_tasks_follow_their_crash_rule(
    server: Server, http: httpx2.AsyncClient, agent: str, status: str, tmp_path: Path
) -> None:
    """A helper of the agent that left its process group is ended too, at the latest by the next server."""
    again = tmp_path / "again"
    task = await submit(http, f"if [ -e {again} ]; then echo fine; else touch {again}; {LEAVE_GROUP}; fi", agent=agent)
    await wait_for_agents(3)
    await server.kill()
    await server.start()
    ended_task = await wait_for_end(http, task)
    assert ended_task["status"] == status
    if status == "done":
        assert (ended_task["result"], ended_task["attempt"], ended_task["rescues"]) == ("fine", 2, 1)
    else:
        assert (ended_task["outcome"], ended_task["attempt"]) == ("lost", 1)
    assert await eventually(lambda: not processes_with(MARK))
    assert "rescued" in (await http.get("/events", headers={"Accept": "application/json"})).text


async def test_sigterm_ends_agents_and_exits_cleanly(server: Server, http: httpx2.AsyncClient) -> None:
    task = await submit(http, "sleep 60")
    await wait_for_agents()
    server.signal(signal.SIGTERM)
    assert server.process is not None
    assert await asyncio.to_thread(server.process.wait, 60) == 0
    assert not processes_with(MARK)
    async with Runtime.open(server.home, work=False) as looking:
        stored_task = await looking.store.get_task(task["id"])
        assert stored_task is not None and (stored_task.status, stored_task.interruptions) == ("pending", 1)


async def test_an_open_stream_does_not_delay_the_servers_stop(server: Server, http: httpx2.AsyncClient) -> None:
    async with http.stream("GET", "/events", timeout=None) as stream:
        assert stream.status_code == 200
        server.signal(signal.SIGTERM)
        async for _ in stream.aiter_bytes():
            pass
    assert server.process is not None
    assert await asyncio.to_thread(server.process.wait, 60) == 0
