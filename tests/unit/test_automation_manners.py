"""Test names of automations, overlap, days off, quiet hours, and stopping by a pause, with a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.agent import AgentTerms
from midwatch.services.automations import Automations
from midwatch.services.task_endings import TaskEndings
from midwatch.services.tasks import Tasks
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock
from records import KnownAgents


async def terms(agent: str) -> AgentTerms:
    return AgentTerms()


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(":memory:")
    yield opened
    await opened.close()


@pytest.fixture
def tasks(store: SqliteStore, clock: FakeClock) -> Tasks:
    return Tasks(store, clock, KnownAgents("demo"), lambda route: route, endings=TaskEndings(store, clock, terms))


@pytest.fixture
def automations(store: SqliteStore, clock: FakeClock, tasks: Tasks) -> Automations:
    return Automations(store, clock, tasks, terms, lambda route: route)


async def test_a_name_is_unique_among_automations_that_are_not_deleted(automations: Automations) -> None:

    async def make(**wish: Any) -> str:
        return (await automations.create("look", agent="demo", every="1h", zone="UTC", **wish)).id

    first, second = await make(name="brief", title="Morning"), await make(title="Evening")
    with pytest.raises(Conflict, match=first):
        await make(name="brief")
    with pytest.raises(Conflict, match=first):
        await automations.patch(second, {"name": "brief"})
    for wrong in ("Brief", "am_1", "a b", "export", "x" * 61):
        with pytest.raises(InvalidInput, match="name must have"):
            await make(name=wrong)
    assert [(await automations.get(key)).id for key in (first, "brief", "Morning", "Evening")] == [
        first,
        first,
        first,
        second,
    ]
    assert (await automations.patch("brief", {"name": "other"})).id == first  # its key changes with the patch
    await make(title="Evening")
    with pytest.raises(Conflict, match="several automations"):
        await automations.get("Evening")
    await automations.delete("other")
    with pytest.raises(NotFound):
        await automations.get("other")
    third = await make(name="other")
    with pytest.raises(Conflict, match=third):
        await automations.resume(first)
