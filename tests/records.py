"""Make and store records for tests."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.ids import new_id
from midwatch.base.schedule import Schedule
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes, Fence
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.event import Event, TaskProgress, event
from midwatch.domain.goal import Goal
from midwatch.domain.handoff import Handoff, HandoffTask
from midwatch.domain.handoff_history import HandoffContext
from midwatch.domain.steering import Mode, Steer
from midwatch.domain.store import Store
from midwatch.domain.task import Task, meta, new_task
from midwatch.stores.sqlite import SqliteStore

CLOCK = SystemClock()
OWNER = "i_one"
NUMBERS = itertools.count()


def a_task(**fields: Any) -> Task:
    """Return a pending task that is due."""
    task = new_task(CLOCK.now(), "do it", "demo", fields.get("session_key"), task_id=fields.get("id"))
    return task._replace(**fields)


def a_steer(task: Task, text: str, number: int = 1, *, mode: Mode = "after_tool") -> Steer:
    """Return a message for a running turn."""
    now = CLOCK.now()
    return Steer(
        id=new_id("m", now),
        task_id=task.id,
        number=number,
        session_key=task.session_key,
        mode=mode,
        text=text,
        created_at=now,
    )


def an_automation(now: int, **fields: Any) -> Automation:
    """Return an automation that runs every hour."""
    base: dict[str, Any] = {
        "id": new_id("am", now), "prompt": "look {{date}}", "agent": "demo", "session_key": "auto:1",
        "schedule": Schedule.make(every=3600, zone="UTC", anchor=now).snapshot(), "created_at": now,
        "updated_at": now, "next_run_at": now + 3600 * SECOND,
    }  # fmt: skip
    return Automation(**{**base, **fields})


def a_goal(now: int, **fields: Any) -> Goal:
    """Return a goal with one day until its deadline."""
    base: dict[str, Any] = {
        "id": new_id("g", now), "objective": "reach it", "agent": "demo", "session_key": "goal:1", "created_at": now,
        "updated_at": now, "deadline_at": now + 86400 * SECOND,
    }  # fmt: skip
    return Goal(**{**base, **fields})


def a_handoff(**fields: Any) -> Handoff:
    """Return a pending handoff with five minutes until its deadline."""
    now = CLOCK.now()
    base: dict[str, Any] = {
        "id": f"h_{next(NUMBERS):06d}", "from_agent": "lead", "to_agent": "coder", "created_at": now,
        "request": HandoffTask(description="do it", input={"a": ["ü", None]}).data(),
        "context": HandoffContext(messages=({"role": "user", "content": "x"},)).data(), "owner": "i_one",
        "chain": (("lead", None), ("second", "h_0")), "deadline_at": now + 300 * SECOND, "timeout": 2.5,
    }  # fmt: skip
    return Handoff(**{**base, **fields})


async def put(store: Store, **fields: Any) -> Task:
    """Submit a task."""
    task = a_task(**fields)
    return (await store.submit(task)).task


def claim_request(free: int = 10, owner: str = OWNER, **fields: Any) -> ClaimRequest:
    """Return a claim request with enough free slots for all tasks."""
    return ClaimRequest(**{"owner": owner, "host": "here", "free": free, "agents": {"demo": 10}, **fields})


async def claim_tasks(store: Store, free: int = 10, **fields: Any) -> list[Task]:
    """Claim the due tasks."""
    return [claim.task for claim in (await store.claim(claim_request(free, **fields), CLOCK.now())).taken]


async def submit_and_claim(store: Store, **fields: Any) -> Task:
    """Submit one task and claim it."""
    task = await put(store, **fields)
    (claimed_task,) = [candidate for candidate in await claim_tasks(store) if candidate.id == task.id]
    return claimed_task


def fence(task: Task) -> Fence:
    """Return the fence of the task's present attempt."""
    return Fence(task.id, task.attempt)


def progress(task: Task, text: str = "working") -> Event:
    """Return a progress event of the task."""
    return event(TaskProgress(text=text), CLOCK.now(), **meta(task))


class KnownAgents:
    """A registry of some agents; the first one is the default."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.default = names[0]

    def advice(self, agent: str) -> str | None:
        return None

    def terms(self, agent: str) -> AgentTerms | None:
        return AgentTerms() if agent in self._names else None

    def local_names(self) -> frozenset[str]:
        return frozenset(self._names)

    async def find_advertised(self, agent: str) -> AgentTerms | None:
        return None

    async def live(self) -> frozenset[str]:
        return self.local_names()


class InterferingStore(SqliteStore):
    """A store that calls a function once before the next write, to simulate a concurrent change."""

    interfere: Callable[[], Awaitable[object]] | None = None

    async def apply(self, changes: Changes) -> None:
        interfere, self.interfere = self.interfere, None
        if interfere is not None:
            await interfere()
        await super().apply(changes)
