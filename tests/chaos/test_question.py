"""Test a process that is killed while people are asked for a larger budget: deadlines of handoffs stay exact."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

import asking_desk
from midwatch import Runtime
from midwatch.base.clock import SECOND, SystemClock
from midwatch.domain.approval import Approval
from midwatch.domain.handoff import Handoff
from midwatch.testing import FakeClock
from servers import until

HOUR = 3600 * SECOND


async def die_while_asking(home: Path, db: str | None) -> None:
    """Run the desk in a process, and kill it when its work waits for an answer."""
    command = (sys.executable, asking_desk.__file__, home, *([db] if db else []))
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 120) == b"asked\n"
    finally:
        process.kill()
        await process.wait()


async def list_handoffs(desk: Runtime, status: str) -> list[Handoff]:
    return [handoff for handoff in await desk.handoffs.list() if handoff.status == status]


async def find_second_question(desk: Runtime, clock: FakeClock) -> Approval:
    """Return the question that the rescued work asks."""

    async def look() -> Approval | None:
        await clock.advance(0.01)  # not faster than the heartbeats, which tell that a process is dead
        questions = await desk.approvals.list(None)
        return questions[0] if len(questions) == 2 else None

    question: Approval = await until(look)
    return question


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_process_is_killed_while_people_are_asked(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Once the deadlines stayed 12 hours late for each delegate that waited."""
    db = request.getfixturevalue("database") if kind == "postgres" else None
    await die_while_asking(tmp_path / "home", db)
    clock = FakeClock(SystemClock().now() + HOUR)
    async with asking_desk.open_desk(tmp_path / "home", db, clock) as desk:
        second = await find_second_question(desk, clock)
        await clock.advance(3600)
        handoffs = await list_handoffs(desk, "in_progress")
        assert len(handoffs) == asking_desk.PARTS
        await desk.approvals.answer(second.id, "raise by 100 %")
        waited = 0
        for question in await desk.approvals.list(None):
            assert question.resolved_at is not None
            assert question.resolved_at - question.created_at >= HOUR
            waited += question.resolved_at - question.created_at
        moved = await list_handoffs(desk, "in_progress")
        expected = {handoff.created_at + int(asking_desk.TIMEOUT * SECOND) + waited for handoff in moved}
        assert {handoff.deadline_at for handoff in moved} == expected
        await clock.advance((min(expected) - clock.now()) / SECOND - 1)
        assert await list_handoffs(desk, "in_progress") == moved
        await clock.advance(3 + (max(expected) - min(expected)) / SECOND)

        async def all_expired() -> Any:
            return len(await list_handoffs(desk, "expired")) == asking_desk.PARTS

        await until(all_expired)
