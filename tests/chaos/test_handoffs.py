"""Test a process of agents that hand off work, killed at random moments: each source gets its answer exactly once."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

import handoff_desk
from midwatch import Runtime, TaskFilter
from midwatch.domain.event import EventFilter
from midwatch.domain.handoff import HandoffFilter

COUNT, DEATHS = 30, 4


async def run_desk(home: Path, notes: Path, until: int | None) -> None:
    """Run the desk to its end, or kill it soon after so many pieces of work were started."""
    command = (sys.executable, handoff_desk.__file__, home, notes, COUNT)
    child = await asyncio.create_subprocess_exec(*map(str, command), stderr=asyncio.subprocess.PIPE)
    try:
        if until is not None:
            async with asyncio.timeout(120):
                while child.returncode is None and len(notes.read_text().splitlines()) < until:
                    await asyncio.sleep(0.002)
            await asyncio.sleep(random.uniform(0.0, 0.05))  # a random moment, not synchronisation
            if child.returncode is None:
                child.kill()
        error = (await asyncio.wait_for(child.communicate(), 180))[1].decode()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert until is not None or child.returncode == 0, error


@pytest.mark.timeout(900)
async def test_a_source_gets_its_answer_once_although_the_process_is_killed(tmp_path: Path) -> None:
    home, notes = tmp_path / "home", tmp_path / "notes"
    notes.touch()
    for death in range(DEATHS):
        await run_desk(home, notes, (death + 1) * COUNT // DEATHS)
    await run_desk(home, notes, None)
    async with Runtime.open(home, work=False) as desk:
        everything = await desk.tasks.list(TaskFilter(limit=500))
        tasks = {task.prompt: task for task in everything if task.cause == "submit"}
        handoffs = await desk.store.list_handoffs(HandoffFilter(limit=500))
        for number in range(COUNT):
            task = tasks[f"w{number}"]
            mine = [handoff for handoff in handoffs if handoff.source_task == task.id and handoff.status == "completed"]
            if number % 2:
                assert (task.outcome, len(mine)) == ("transferred", 1)
                assert await desk.tasks.result(task.id) == f"did w{number}"
            else:
                assert (task.result, len(mine)) == (f"did w{number}/a did w{number}/b", 2), task.error
            ends = await desk.store.read_events(0, EventFilter(task_id=task.id, kinds=("task_finished",)))
            assert len(ends) == 1
        assert {handoff.status for handoff in handoffs} <= {"completed", "failed", "cancelled"}
        # A handoff that was being prepared when its process died has failed, and another one replaces it.
        assert all(handoff.task_id is None for handoff in handoffs if handoff.status != "completed")
        children = Counter(task.cause_id for task in everything if task.cause == "handoff")
        assert not children or max(children.values()) == 1
