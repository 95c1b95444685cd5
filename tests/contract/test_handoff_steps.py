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

    def write(self, index: int, step: Step) -> None:
        """Write one step computed from the writer's copy, then give the writer the stored state."""
        if not self.copies:
            return
        name = sorted(self.copies)[index % len(self.copies)]
        copy, before = self.copies[name], self.stored[name]
        result = step(copy)
        changes = result if isinstance(result, Changes) else result[1]
        if not changes.updates:
            return
        status = changes.updates[0].fields.get("status", copy.status)
        follows = status in TRANSITIONS[copy.status] or "status" not in changes.updates[0].fields
        try:
            self.run(self.store.apply(changes))
        except Conflict:
            assert copy.revision != before.revision or not follows
            self.copies[name] = before
            return
        assert copy.revision == before.revision and follows
        self.transitions += "status" in changes.updates[0].fields
        after = self.run(self.store.get_handoff(name))
        if before.status not in OPEN:
            assert all(getattr(after, field) == getattr(before, field) for field in FINAL_FIELDS)
        else:
            assert after.status in TRANSITIONS[before.status] | {before.status}
        self.stored[name] = self.copies[name] = after

    @rule(first=st.sampled_from(["coder", "tester"]))
    def ask(self, first: str) -> None:
        handoff = Handoff(
            id=f"h_{len(self.stored)}", to_agent=first, request=HandoffTask(description="x").data(),
            context=HandoffContext().data(), created_at=NOW, deadline_at=NOW + SECOND,
        )  # fmt: skip
        self.run(self.store.apply(steps.request_handoff(handoff, NOW)))
        self.transitions += 1
        self.stored[handoff.id] = self.copies[handoff.id] = self.run(self.store.get_handoff(handoff.id))

    @rule(index=INDEX)
    def accept(self, index: int) -> None:
        self.write(index, lambda handoff: steps.accept_handoff(handoff, NOW))

    @rule(index=INDEX, following=st.sampled_from([None, "tester"]))
    def reject(self, index: int, following: str | None) -> None:
        self.write(index, lambda handoff: steps.refuse_handoff(handoff, "busy", NOW, following))

    @rule(index=INDEX)
    def start(self, index: int) -> None:
        self.write(
            index, lambda handoff: steps.start_handoff(handoff, a_task(cause="handoff", cause_id=handoff.id), NOW)
        )

    @rule(index=INDEX, how=TASK_ENDS)
    def finish(self, index: int, how: tuple[Any, Any]) -> None:
        """End the task of a handoff, also of one that has ended: a late result."""
        self.write(
            index, lambda handoff: steps.settle(handoff, _task(handoff, status=how[0], outcome=how[1], result="r"), NOW)
        )

    @rule(index=INDEX)
    def retry(self, index: int) -> None:
        self.write(index, lambda handoff: steps.settle(handoff, _task(handoff, failures=1, wait="backoff"), NOW))

    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        self.write(index, lambda handoff: steps.cancel_handoff(handoff, "no", NOW))

    @rule(index=INDEX)
    def expire(self, index: int) -> None:
        self.write(index, lambda handoff: steps.expire_handoff(handoff, NOW))

    @rule(index=INDEX)
    def crash_while_preparing(self, index: int) -> None:
        self.write(index, lambda handoff: steps.fail_handoff(handoff, "its process died", NOW, "choose", once=None))

    @rule(index=INDEX, steps_back=st.sampled_from(["pending", "accepted", "in_progress"]))
    def use_an_outdated_copy(self, index: int, steps_back: Any) -> None:
        """Give a writer a copy in an earlier status."""
        with suppress(IndexError):
            name = sorted(self.copies)[index % max(1, len(self.copies))]
            stored = self.stored[name]
            if stored.revision:
                self.copies[name] = replace(stored, status=steps_back, revision=stored.revision - 1)

    @invariant()
    def each_transition_has_one_event(self) -> None:
        events = [event for event in self.run(self.store.read_events(0)) if event.kind.startswith("handoff_")]
        assert len(events) == self.transitions


def _task(handoff: Handoff, **fields: Any) -> Task:
    return a_task(id=handoff.task_id or "t_none", cause="handoff", cause_id=handoff.id, **fields)


TestHandoffs = Handoffs.TestCase
TestHandoffs.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
