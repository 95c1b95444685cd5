"""Test a process whose agents start background work, killed at random points: every result reaches its agent once."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path

import pytest

import results_desk
from fakes.model_server import Model, serve
from midwatch import Runtime, Settings
from midwatch.domain.event import EventFilter

SESSIONS, DEATHS = 12, 4


async def run_once(argv: list[str], model: Model, kill_at: int | None, rng: random.Random) -> None:
    """Run the program until it ends, or kill it at a random moment after `kill_at` model calls."""
    child = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
    try:
        if kill_at is not None:
            reached = asyncio.create_task(model.until(lambda current: len(current.requests) >= kill_at))
            over = asyncio.create_task(child.wait())
            await asyncio.wait({reached, over}, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            await asyncio.sleep(rng.uniform(0.0, 0.05))  # a random moment, not synchronisation
            if child.returncode is None:
                child.kill()
        error = (await asyncio.wait_for(child.communicate(), 180))[1].decode()
        assert kill_at is not None or child.returncode == 0, error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_results_reach_their_agent_once_although_the_process_is_killed(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    seed = time.time_ns() % 10**9
    print(f"\nseed {seed}")
    rng, home = random.Random(seed), tmp_path / "home"
    db = {"db": request.getfixturevalue("database")} if kind == "postgres" else {}
    async with serve() as (url, model):
        argv = [sys.executable, results_desk.__file__, str(home), url, str(SESSIONS), *db.values()]
        for kill_at in [*sorted(rng.sample(range(2, 3 * SESSIONS), DEATHS)), None]:
            await run_once(argv, model, kill_at, rng)
    settings = Settings.load(home, detect_agents=False, **db)
    async with Runtime.open(settings=settings, agents={}, work=False) as desk:
        told = await desk.store.read_events(0, EventFilter(kinds=("context_injected",)), 1000)
        for number in range(SESSIONS):
            session = await desk.store.get_session(f"chat:{number}")
            assert session is not None
            assert session.thread_id is not None
            steps = await desk.store.list_thread_steps(session.thread_id, "")
            got = json.dumps([step.data for step in steps if step.data["kind"] in ("prompt", "said")])
            for name in results_desk.NAMES:
                assert got.count(f"> result-{number}{name}") == 1, (number, name)
            assert await desk.store.list_context_items(session.key) == []
        assert sum(len(event.payload["task_ids"]) for event in told) == SESSIONS * len(results_desk.NAMES)
