"""Test a process with turns of a model, killed at random points: no completed step is done or paid for twice."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import llm_desk
from fakes.model_server import Model, serve
from midwatch import Runtime
from midwatch.domain.event import Event, EventFilter

POINTS = 50
TASKS, DEATHS = 7, 4
STARTS = {"turn_start": "turn_end", "llm_request": "llm_response", "tool_exec_start": "tool_exec_end"}


def name_of(event: Event) -> tuple[Any, ...]:
    """Return the name that a start and its end have in common."""
    payload = event.payload
    return event.turn_id, payload.get("request_id"), payload.get("tool_call_id")


def check_balance(events: list[Event]) -> None:
    """Check that every start has exactly one end, after it."""
    opened: Counter[tuple[Any, ...]] = Counter()
    for event in events:
        for start, end in STARTS.items():
            if event.kind == start:
                opened[(start, *name_of(event))] += 1
                assert opened[(start, *name_of(event))] == 1
            elif event.kind == end:
                opened[(start, *name_of(event))] -= 1
                assert opened[(start, *name_of(event))] == 0
    assert not +opened


def count_model_calls(model: Model, number: int) -> Counter[int]:
    """Return how often the model was called at each step of a turn."""
    return Counter(
        len(request["results"]) for request in model.requests if request["said"][0].startswith(f"turn-{number}:")
    )


async def kill_turns(folder: Path, url: str, model: Model, rng: random.Random) -> int:
    """Run some turns, kill their process several times, and return the number of interrupted points."""
    folder.mkdir()
    home, notes, points = folder / "home", folder / "notes", 0
    notes.touch()
    model.requests.clear()
    total = TASKS * (llm_desk.STEPS + 1)
    targets = sorted(rng.sample(range(TASKS, total - 20), DEATHS))
    hit: Counter[int] = Counter()
    for death in range(DEATHS + 1):
        command = (sys.executable, llm_desk.__file__, home, url, notes, str(TASKS))
        child = await asyncio.create_subprocess_exec(*map(str, command), stderr=asyncio.subprocess.PIPE)
        try:
            if death < DEATHS:
                target = max(targets[death], len(model.requests) + 1)
                reached = asyncio.create_task(model.until(lambda current, most=target: len(current.requests) >= most))
                over = asyncio.create_task(child.wait())
                await asyncio.wait({reached, over}, return_when=asyncio.FIRST_COMPLETED)
                reached.cancel()
                assert child.returncode is None, (await child.communicate())[1].decode()
                await asyncio.sleep(rng.uniform(0.0, 0.03))  # a random moment, not synchronisation
                child.kill()
            error = (await asyncio.wait_for(child.communicate(), 180))[1].decode()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        open_turns = [
            n for n in range(TASKS) if llm_desk.STEPS not in count_model_calls(model, n) and count_model_calls(model, n)
        ]
        if death < DEATHS:
            hit.update(open_turns)
            points += len(open_turns)
        else:
            assert child.returncode == 0, error
    await check(home, notes, model, hit)
    return points


async def check(home: Path, notes: Path, model: Model, hit: Counter[int]) -> None:
    """Check what must hold afterwards."""
    written = Counter(notes.read_text().splitlines())
    async with Runtime.open(home, agents={}) as desk:
        tasks = {task.prompt.partition(":")[0]: task for task in await desk.tasks.list()}
        for number in range(TASKS):
            task = tasks[f"turn-{number}"]
            assert (task.outcome, (task.result or "").split()[-2:]) == ("ok", ["the", "end"])
            steps = [step.data for step in await desk.store.list_task_steps(task.id)]
            outputs = [step["request"]["parts"][0]["content"] for step in steps if step["kind"] == "tool"]
            assert len(outputs) == llm_desk.STEPS
            for index, text in enumerate(outputs):
                line = f"{number} {index}"
                if text == f"wrote {line}":
                    assert written[line] == 1, line
                else:
                    assert text.startswith("Whether it ran is not known"), text
                    assert written[line] <= 1, line
            assert sum(step["kind"] == "model" for step in steps) == llm_desk.STEPS + 1
            again = count_model_calls(model, number)
            assert again.total() <= llm_desk.STEPS + 1 + task.rescues, again
            check_balance(list(await desk.store.read_events(0, EventFilter(task_id=task.id), 10_000)))
    assert max(written.values()) == 1


@pytest.mark.timeout(900)
async def test_a_turn_killed_at_any_point_ends_as_if_uninterrupted(tmp_path: Path) -> None:
    seed = time.time_ns() % 10**9
    rng, points, batch, began = random.Random(seed), 0, 0, time.monotonic()
    print(f"\nseed {seed}")
    async with serve() as (url, model):
        while points < POINTS:
            points += await kill_turns(tmp_path / str(batch), url, model, rng)
            batch += 1
    print(f"{points} points in {batch * TASKS} turns, {time.monotonic() - began:.0f} s")
