"""Test events: frozen payloads, JSON and back, and a filter that selects the same events in memory and in the store."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midwatch.base.clock import SECOND, iso
from midwatch.domain.changes import Changes
from midwatch.domain.event import (
    EVERYTHING,
    KINDS,
    Event,
    EventFilter,
    Gap,
    Payload,
    TaskProgress,
    TurnStart,
    event,
    kind_text,
    kinds_of,
)
from midwatch.stores.sqlite import SqliteStore

NOW = 1_700_000_000 * SECOND
META = sorted(set(Event._fields) - {"kind", "time", "payload", "id", "seq", "version"})
"""The fields of the envelope that are metadata."""

SEEDS = {
    "turn_start": {"user_message", "channel", "chat_id", "media_count"},
    "turn_end": {"status", "iterations", "duration", "final_content_len"},
    "llm_request": {"model", "messages_count", "tools_count", "max_tokens", "temperature"},
    "llm_response": {"content_len", "tool_calls", "has_reasoning"},
    "tool_exec_start": {"tool", "arguments"},
    "tool_exec_end": {"tool", "duration", "for_llm_len", "for_user_len", "is_error", "async_"},
    "error": {"stage", "message"},
    "message_update": {"message", "role"},
    "status_change": {"status", "agent_type"},
    "screen_update": {"screen"},
    "agent_error": {"message", "level"},
}
"""The kinds that users of the reference systems know, with their fields."""

OWN_KINDS = {
    "task_submitted", "task_started", "task_progress", "task_waiting", "task_interrupted", "task_rescued",
    "task_finished", "task_late", "approval_requested", "approval_resolved", "delivery_sent", "delivery_failed",
    "rule_added", "rule_revoked",
    "message_delta", "gap", "interrupt_received", "session_opened", "session_closed", "token_created", "token_revoked",
    "signed_in", "delivery_retried", "automation_created", "automation_changed", "automation_fired",
    "automation_queued", "automation_triggered", "automation_missed", "automation_paused", "goal_created",
    "goal_changed", "goal_step", "goal_delayed",
    "goal_paused", "goal_completed", "goal_timed_out", "watchdog_alert", "watchdog_acknowledged",
    "watchdog_withdrawn", "agent_exited",
    "thought_update", "thought_delta", "plan_update", "worktree_changed", "llm_delta", "llm_retry",
    "tool_exec_skipped", "context_trimmed", "steering_injected", "context_injected", "budget_reached", "budget_warned",
    "handoff_requested",
    "handoff_accepted", "handoff_rejected", "handoff_started", "handoff_retried", "handoff_completed",
    "handoff_failed", "handoff_cancelled", "handoff_expired", "hook_decided", "probe_start", "probe_end",
}  # fmt: skip

EXAMPLES: dict[Any, Any] = {"str": "grüße 🎉", "int": 3, "float": 0.5, "bool": True, "Any": {"a": [1, None]}}
TUPLES: dict[str, Any] = {
    "tuple[str, ...]": ("yes", "no"),
    "tuple[collections.abc.Mapping[str, Any], ...]": ({"path": "a", "added": 1},),
}


def an_example(payload_class: type[Payload]) -> Payload:
    """Return a payload with every field set."""
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(payload_class).items():
        if name in payload_class.names:
            text = str(hint).replace("typing.", "").removeprefix("<class '").removesuffix("'>").split(" | ")[0]
            values[name] = TUPLES.get(text, EXAMPLES.get(text, {"tokens": 7}))
    return payload_class(**values)


def test_the_list_of_kinds_is_complete() -> None:
    """Adding a kind is a decision: add it to this list and to the documentation."""
    assert set(KINDS) == set(SEEDS) | OWN_KINDS


@pytest.mark.parametrize("kind", SEEDS)
def test_kinds_of_the_reference_systems_keep_names_and_fields(kind: str) -> None:
    assert SEEDS[kind] <= set(KINDS[kind].names)


def test_only_deltas_and_gaps_are_live() -> None:
    live = {name for name, payload_class in KINDS.items() if payload_class.live}
    assert live == {"message_delta", "thought_delta", "llm_delta", "screen_update", "gap"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_has_slots_and_names_its_kind(kind: str) -> None:
    payload = an_example(KINDS[kind])
    assert payload.kind == kind
    assert not hasattr(payload, "__dict__")
    assert KINDS[kind].__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_survives_json(kind: str) -> None:
    payload = an_example(KINDS[kind])
    data = json.loads(json.dumps(payload.data()))
    again = KINDS[kind].of(data)
    assert json.dumps(again.data()) == json.dumps(payload.data())
    assert set(data) == {name.rstrip("_") for name in payload.names}


@pytest.mark.parametrize("kind", [name for name, payload_class in KINDS.items() if not payload_class.live])
async def test_a_stored_event_is_read_back_unchanged(kind: str) -> None:
    store = await SqliteStore.open(":memory:")
    try:
        about: dict[str, Any] = {name: f"a {name}" for name in META} | {"attempt": 2, "iteration": 3}
        new_event = event(an_example(KINDS[kind]), NOW, **about)
        await store.apply(Changes(events=(new_event,)))
        (stored_event,) = await store.read_events(0)
    finally:
        await store.close()
    assert stored_event._replace(payload=None) == new_event._replace(payload=None, seq=1)  # type: ignore[arg-type]
    assert json.dumps(stored_event.snapshot()) == json.dumps(new_event._replace(seq=1).snapshot())


def test_a_snapshot_shows_the_envelope_and_omits_unknown_values() -> None:
    progress_event = event(TaskProgress(text="half"), NOW, task_id="t_1")
    assert progress_event.snapshot() == {
        "seq": 0,
        "id": progress_event.id,
        "kind": "task_progress",
        "time": iso(NOW),
        "version": 1,
        "task_id": "t_1",
        "payload": {"text": "half", "percent": None},
    }
    nothing = event(Gap(dropped=2), NOW).snapshot()
    assert nothing["task_id"] is None  # these keys are always present, so programs need no check
    full = event(TaskProgress(text=""), NOW, **dict.fromkeys(META, 1)).snapshot()
    assert set(META) <= set(full)


def test_events_have_unique_ids() -> None:
    payload = TurnStart(user_message="x")
    assert len({event(payload, NOW).id for _ in range(1000)}) == 1000


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError):
        event(TurnStart(user_message="x"), NOW, task="t_1")
    with pytest.raises(TypeError):
        TurnStart(message="x")  # type: ignore[call-arg]


# -- the filter --------------------------------------------------------------------------------------------------

SOME = st.sampled_from([None, "a", "b"])
EVENTS = st.lists(
    st.builds(
        lambda kind, task, turn, session, agent, actor: Event(
            kind, NOW, {}, "e", task_id=task, turn_id=turn, session_key=session, agent_id=agent, actor=actor
        ),
        st.sampled_from(["turn_start", "turn_end", "error"]), SOME, SOME, SOME, SOME, SOME,
    ),
    max_size=12,
)  # fmt: skip
CONDITIONS = {
    "turn_start": {"turn_start"}, "error": {"error"}, "turn_*": {"turn_start", "turn_end"},
    "*": {"turn_start", "turn_end", "error"}, "tu*t": set(), "turn_%*": set(),
}  # fmt: skip
FILTERS = st.builds(
    EventFilter,
    kinds=st.sets(st.sampled_from([*CONDITIONS, "nothing"]), max_size=3).map(tuple),
    task_id=SOME,
    turn_id=SOME,
    session_key=SOME,
    agent_id=SOME,
    actor=SOME,
)


@given(EVENTS, FILTERS)
def test_the_conditions_of_a_filter_are_combined_with_and(events: list[Event], which: EventFilter) -> None:
    for candidate in events:
        expected = not which.kinds or any(candidate.kind in CONDITIONS.get(kind, ()) for kind in which.kinds)
        for name in ("task_id", "turn_id", "session_key", "agent_id", "actor"):
            condition = getattr(which, name)
            expected = expected and (condition is None or condition == getattr(candidate, name))
        assert which.matches(candidate) == expected
        assert EVERYTHING.matches(candidate)


async def test_the_store_and_the_filter_select_the_same_events() -> None:
    """A follower reads old events from the store and new ones from memory; both must select the same events."""
    store = await SqliteStore.open(":memory:")
    values = (None, "a")
    events = [
        Event(kind, NOW, {}, "e", task_id=task, turn_id=turn, session_key=session, agent_id=agent, actor=actor)
        for kind in ("turn_start", "error")
        for task, turn in ((None, None), ("a", "a.1"), ("a", "a.2"))
        for session in values
        for agent in values
        for actor in values
    ]
    try:
        await store.apply(Changes(events=tuple(events)))
        stored = await store.read_events(0)
        for kinds in (
            (),
            ("error",),
            ("turn_start", "error"),
            ("nothing",),
            ("turn_*",),
            ("err*", "turn_start"),
            ("no*",),
        ):
            for like in events[: len(events) // 2]:
                which = EventFilter(
                    kinds=kinds, task_id=like.task_id, turn_id=like.turn_id, session_key=like.session_key,
                    agent_id=like.agent_id, actor=like.actor,
                )  # fmt: skip
                fit = [e for e in stored if which.matches(e)]
                assert await store.read_events(0, which) == fit
                assert await store.read_events_back(len(stored) + 1, which) == fit
    finally:
        await store.close()


def test_a_kind_of_a_newer_version_is_marked() -> None:
    assert [kind_text(name) for name in ("turn_start", "gap", "later")] == ["turn_start", "gap", "event_kind(later)"]
    assert (kinds_of("turn_*"), kinds_of("turn"), kinds_of("later*")) == (["turn_start", "turn_end"], [], [])


@pytest.mark.parametrize("kind", ["TURN_START", "turn-start", "turnxstart", "TURN_*", "turn.*", "turn%*"])
async def test_the_store_and_the_filter_agree_on_unknown_kinds(kind: str) -> None:
    store = await SqliteStore.open(":memory:")
    try:
        await store.apply(Changes(events=(event(TurnStart(user_message="x"), NOW),)))
        stored = await store.read_events(0)
        which = EventFilter(kinds=(kind,))
        assert await store.read_events(0, which) == [e for e in stored if which.matches(e)]
    finally:
        await store.close()
