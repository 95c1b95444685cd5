"""Test handoffs with random steps, outdated writers and crashes: all transitions are in the table, and an ended handoff
never changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict
from midwatch.domain import handoff as steps
from midwatch.domain.changes import Changes
from midwatch.domain.handoff import OPEN, TRANSITIONS, Handoff, HandoffTask
from midwatch.domain.handoff_history import HandoffContext
from midwatch.domain.task import Task
from midwatch.stores.sqlite import SqliteStore
from records import a_task

NOW = 1_700_000_000 * SECOND
FINAL_FIELDS = ("status", "answer", "reason", "completed_at", "task_id", "to_agent", "retry_count", "accepted_at")
INDEX = st.integers(0, 3)
TASK_ENDS = st.sampled_from([("done", "ok"), ("failed", "error"), ("failed", "timeout"), ("cancelled", "cancelled")])

Step = Callable[[Handoff], tuple[Handoff, Changes] | Changes]


class Handoffs(RuleBasedStateMachine):
    """Writers that may have an outdated copy of a handoff: the store refuses invalid transitions."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.store = self.run(SqliteStore.open(":memory:"))
        self.stored: dict[str, Handoff] = {}
        """The state of each handoff in the store after the last step."""
        self.copies: dict[str, Handoff] = {}
        """The copy of each handoff that a writer has, perhaps outdated."""
        self.transitions = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()

    def write(self, place: int, step: Step) -> None:
        """Write one step computed from the writer's copy, then give the writer the stored state."""
        if not self.copies:
            return
        name = sorted(self.copies)[place % len(self.copies)]
        held, before = self.copies[name], self.stored[name]
        made = step(held)
        changes = made if isinstance(made, Changes) else made[1]
        if not changes.updates:
            return
        wanted = changes.updates[0].fields.get("status", held.status)
        follows = wanted in TRANSITIONS[held.status] or "status" not in changes.updates[0].fields
        try:
            self.run(self.store.apply(changes))
        except Conflict:
            assert held.revision != before.revision or not follows
            self.copies[name] = before
            return
        assert held.revision == before.revision and follows
        self.transitions += "status" in changes.updates[0].fields
        after = self.run(self.store.get_handoff(name))
        if before.status not in OPEN:
            assert all(getattr(after, field) == getattr(before, field) for field in FINAL_FIELDS)
        else:
            assert after.status in TRANSITIONS[before.status] | {before.status}
        self.stored[name] = self.copies[name] = after

    @rule(first=st.sampled_from(["coder", "tester"]))
    def ask(self, first: str) -> None:
        made = Handoff(
            id=f"h_{len(self.stored)}", to_agent=first, request=HandoffTask(description="x").data(),
            context=HandoffContext().data(), created_at=NOW, deadline_at=NOW + SECOND,
        )  # fmt: skip
        self.run(self.store.apply(steps.request_handoff(made, NOW)))
        self.transitions += 1
        self.stored[made.id] = self.copies[made.id] = self.run(self.store.get_handoff(made.id))

    @rule(place=INDEX)
    def accept(self, place: int) -> None:
        self.write(place, lambda one: steps.accept_handoff(one, NOW))

    @rule(place=INDEX, following=st.sampled_from([None, "tester"]))
    def reject(self, place: int, following: str | None) -> None:
        self.write(place, lambda one: steps.refuse_handoff(one, "busy", NOW, following))

    @rule(place=INDEX)
    def start(self, place: int) -> None:
        self.write(place, lambda one: steps.start_handoff(one, a_task(cause="handoff", cause_id=one.id), NOW))

    @rule(place=INDEX, how=TASK_ENDS)
    def finish(self, place: int, how: tuple[Any, Any]) -> None:
        """End the task of a handoff, also of one that has ended: a late result."""
        self.write(place, lambda one: steps.settle(one, _task(one, status=how[0], outcome=how[1], result="r"), NOW))

    @rule(place=INDEX)
    def retry(self, place: int) -> None:
        self.write(place, lambda one: steps.settle(one, _task(one, failures=1, wait="backoff"), NOW))

    @rule(place=INDEX)
    def cancel(self, place: int) -> None:
        self.write(place, lambda one: steps.cancel_handoff(one, "no", NOW))

    @rule(place=INDEX)
    def expire(self, place: int) -> None:
        self.write(place, lambda one: steps.expire_handoff(one, NOW))

    @rule(place=INDEX)
    def crash_while_preparing(self, place: int) -> None:
        self.write(place, lambda one: steps.fail_handoff(one, "its process died", NOW, "choose", once=None))

    @rule(place=INDEX, steps_back=st.sampled_from(["pending", "accepted", "in_progress"]))
    def use_an_outdated_copy(self, place: int, steps_back: Any) -> None:
        """Give a writer a copy in an earlier status."""
        with suppress(IndexError):
            name = sorted(self.copies)[place % max(1, len(self.copies))]
            found = self.stored[name]
            if found.revision:
                self.copies[name] = replace(found, status=steps_back, revision=found.revision - 1)

    @invariant()
    def each_transition_has_one_event(self) -> None:
        told = [one for one in self.run(self.store.read_events(0)) if one.kind.startswith("handoff_")]
        assert len(told) == self.transitions


def _task(one: Handoff, **fields: Any) -> Task:
    return a_task(id=one.task_id or "t_none", cause="handoff", cause_id=one.id, **fields)


TestHandoffs = Handoffs.TestCase
TestHandoffs.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
