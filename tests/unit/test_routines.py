"""Test routines: functions called at intervals that never overlap and whose failures are contained."""

from __future__ import annotations

import asyncio

import pytest

from midwatch.base.errors import Conflict, InvalidInput
from midwatch.loops.routines import Routines
from midwatch.testing import FakeClock, settle


async def nothing() -> None:
    pass


async def test_a_routine_runs_after_each_interval_only_while_it_leads() -> None:
    clock, leads = FakeClock(), [True]
    routines = Routines(clock)
    routine = routines.register("look", 60, nothing)
    await routines.start(lambda: leads[0])
    for expected in (1, 2):
        await clock.advance(60)
        await settle()
        assert routine.runs == expected
    leads[0] = False
    await clock.advance(60)
    await settle()
    assert routine.runs == 2
    await routines.stop()
    await clock.advance(600)
    await settle()
    assert routine.runs == 2


async def test_a_routine_never_overlaps_itself_and_its_failure_is_contained() -> None:
    clock, go_on = FakeClock(), asyncio.Event()
    routines = Routines(clock)

    async def slow() -> None:
        await go_on.wait()
        raise RuntimeError("no")

    routine = routines.register("slow", 10, slow)
    await routines.start(lambda: True)
    await clock.advance(10)
    await settle()
    await clock.advance(10)
    await settle()
    assert (routine.runs, routine.skipped) == (0, 1)
    go_on.set()
    await settle()
    assert (routine.runs, routine.failures, routine.last_error) == (1, 1, "RuntimeError: no")
    await clock.advance(10)
    await settle()
    assert routine.runs == 2
    await routines.stop()


@pytest.mark.parametrize(("name", "seconds"), [("", 1), ("  ", 1), ("x", 0), ("x", -1)])
async def test_a_routine_needs_a_name_and_an_interval(name: str, seconds: float) -> None:
    with pytest.raises(InvalidInput):
        Routines(FakeClock()).register(name, seconds, nothing)


async def test_a_name_can_be_used_once() -> None:
    routines = Routines(FakeClock())
    routines.register("b", 1, nothing)
    routines.register("a", 1, nothing)
    with pytest.raises(Conflict):
        routines.register("a", 1, nothing)
    assert [routine.name for routine in routines.list()] == ["a", "b"]
