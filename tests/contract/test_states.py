"""Test the contract of stores for sessions and for the states that new watchers receive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from midwatch.base.clock import iso
from midwatch.base.errors import Conflict
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import AgentFault, EventFilter, SessionOpened, TaskProgress, event
from midwatch.domain.session import MAX_ERRORS, Message, Session, announce_message
from midwatch.domain.store import Store
from midwatch.domain.task import end, meta
from midwatch.domain.usage import By, UsageQuery, UsageRow
from midwatch.domain.watch_state import MESSAGES_SHOWN
from records import claim_tasks, fence, put, submit_and_claim

CHAT = Session(key="chat:1", agent="demo", gate_key="chat:1", title="talk", creator="ann", created_at=1, updated_at=1)
OPENED = event(SessionOpened(agent="demo"), 1, session_key="chat:1")


async def kinds(store: Store) -> list[str]:
    return [event.kind for event in await store.read_events(0)]


async def test_a_session_is_opened_once_and_again_after_closing(store: Store) -> None:
    assert await store.open_session(CHAT, (OPENED,))
    assert not await store.open_session(replace(CHAT, title="other"), (OPENED,))
    assert not await store.close_session("chat:2", 5, (OPENED,))
    assert await store.close_session("chat:1", 5, ())
    assert not await store.close_session("chat:1", 6, (OPENED,))
    view = await store.view_session("chat:1")
    assert view is not None
    assert (view.status, view.session.updated_at) == ("closed", 5)
    assert not await store.open_session(replace(CHAT, agent="another"), (OPENED,))
    assert await store.open_session(replace(CHAT, updated_at=9), (OPENED,))
    again = await store.view_session("chat:1")
    assert again is not None
    assert (again.status, again.session.title, again.session.creator) == ("idle", "talk", "ann")
    assert await kinds(store) == ["session_opened", "session_opened"]
    assert await store.view_session("chat:2") is None


async def test_the_activity_of_a_session_follows_from_its_tasks(store: Store) -> None:
    await store.open_session(CHAT, ())
    first = await submit_and_claim(store, session_key="chat:1")
    await put(store, session_key="chat:1")
    await put(store, session_key="chat:10")
    busy = await store.view_session("chat:1")
    assert busy is not None
    assert (busy.status, busy.running_task, busy.queued) == ("busy", first.id, 1)
    await store.apply(Changes(fence=fence(first), updates=(Update("task", first.id, {"wait": "approval"}),)))
    (asking,) = [view for view in await store.list_sessions() if view.session.key == "chat:1"]
    assert asking.status == "asking"
    await store.apply(end(first._replace(wait="approval"), 5, outcome="ok", result="x")[1])
    idle = await store.view_session("chat:1")
    assert idle is not None
    assert (idle.status, idle.running_task, idle.queued) == ("idle", None, 1)


async def test_a_task_opens_its_session_but_not_a_closed_one(store: Store) -> None:
    await put(store, session_key="chat:1", creator="ann", workdir="/tmp")
    view = await store.view_session("chat:1")
    assert view is not None
    assert (view.session.creator, view.session.workdir, view.queued) == ("ann", "/tmp", 1)
    await store.close_session("chat:1", 5, ())
    with pytest.raises(Conflict, match="is closed"):
        await put(store, session_key="chat:1")
    await put(store)
    assert [opened.session.key for opened in await store.list_sessions()] == ["chat:1"]


async def test_sessions_are_listed_in_pages(store: Store) -> None:
    for number in range(5):
        await store.open_session(replace(CHAT, key=f"chat:{number}", updated_at=number // 2), ())
    first = [view.session.key for view in await store.list_sessions(2)]
    second = [view.session.key for view in await store.list_sessions(2, first[-1])]
    third = [view.session.key for view in await store.list_sessions(2, second[-1])]
    assert (first, second, third) == (["chat:4", "chat:2"], ["chat:3", "chat:0"], ["chat:1"])


async def test_the_thread_of_another_agent_is_not_reused(store: Store) -> None:
    await store.apply(Changes(sessions=(replace(CHAT, thread_id="of demo"),)))
    await store.apply(Changes(sessions=(replace(CHAT, agent="other"),)))
    session = await store.get_session("chat:1")
    assert session is not None
    assert (session.agent, session.thread_id) == ("other", None)


async def test_a_message_with_the_same_id_is_stored_once_and_announced_on_change(store: Store) -> None:
    prompt = Message(session_key="chat:1", role="user", text="hi", time=1, id="t_1", task_id="t_1")
    answer = replace(prompt, role="agent", text="a", id="t_1.1")
    for message in (prompt, answer, prompt, replace(answer, text="ab"), replace(answer, text="ab")):
        await store.apply(Changes(messages=(message,), events=(announce_message(message),)))
    assert [(m.number, m.text) for m in await store.read_messages("chat:1")] == [(1, "hi"), (2, "ab")]
    messages = [(e.payload["number"], e.payload["message"]) for e in await store.read_events(0)]
    assert messages == [(1, "hi"), (2, "a"), (2, "ab")]


async def test_the_state_of_a_session_is_read_in_one_transaction(store: Store) -> None:
    await store.open_session(CHAT, (OPENED,))
    first = await submit_and_claim(store, session_key="chat:1")
    waiting = await put(store, session_key="chat:1")
    talk = [Message(session_key="chat:1", role="notice", text=str(n), time=n, id=f"m{n}") for n in range(205)]
    faults = [event(AgentFault(message=str(n), level="error"), n, session_key="chat:1") for n in range(105)]
    elsewhere = event(AgentFault(message="elsewhere", level="error"), 1, session_key="chat:2")
    await store.apply(Changes(messages=tuple(talk), events=(*faults, elsewhere)))
    state = await store.read_session_state("chat:1")
    assert state is not None
    assert state.as_of_seq == (await store.read_log_bounds()).last_seq
    assert [m.number for m in state.messages] == list(range(206 - MESSAGES_SHOWN, 206))
    assert [error.message for error in state.errors] == [str(n) for n in range(105 - MAX_ERRORS, 105)]
    assert state.running is not None
    assert (state.running.id, [task.id for task in state.queue]) == (first.id, [waiting.id])
    assert state.snapshot()["session"]["status"] == "busy"
    assert await store.read_session_state("chat:9") is None


async def test_the_state_of_a_task_and_of_the_desk_are_read(store: Store) -> None:
    await put(store)
    (task,) = await claim_tasks(store)
    progress = event(TaskProgress(text="on it"), 7, **meta(task))
    await store.apply(Changes(fence=fence(task), events=(progress,)))
    state = await store.read_task_state(task.id)
    assert state is not None
    assert state.last is not None
    assert (state.task.status, state.last.kind, state.as_of_seq) == ("running", "task_progress", state.last.seq)
    desk = await store.read_desk_state()
    assert desk.summary.running == 1
    ((running_task, last),) = desk.running
    assert last is not None
    assert (running_task.id, last.payload["text"], desk.as_of_seq) == (task.id, "on it", state.as_of_seq)
    assert await store.read_task_state("t_none") is None


@pytest.mark.parametrize(
    ("before", "limit", "seqs"), [(10**9, 3, [4, 5, 6]), (5, 2, [3, 4]), (1, 9, []), (3, 9, [1, 2])]
)
async def test_the_log_is_read_backwards(store: Store, before: int, limit: int, seqs: list[int]) -> None:
    events = tuple(event(TaskProgress(text=str(n)), n, task_id="t_1" if n % 2 else "t_2") for n in range(6))
    await store.apply(Changes(events=events))
    assert [e.seq for e in await store.read_events_back(before, limit=limit)] == seqs
    of_one = [e.seq for e in await store.read_events_back(before, EventFilter(task_id="t_1"), limit)]
    assert of_one == [n for n in range(1, 7) if n % 2 == 0 and n < before][-limit:]


async def test_the_related_tasks_of_a_task_are_listed(store: Store) -> None:
    root = await put(store)
    again = await put(store, root_id=root.id, retry_of=root.id)
    await put(store)
    assert [task.id for task in await store.list_related_tasks(root.id)] == [root.id, again.id]
    assert await store.list_related_tasks("t_none") == []


async def test_failures_and_the_usage_of_ended_tasks_are_read(store: Store) -> None:
    for number, outcome in enumerate(("ok", "error", "timeout", "cancelled")):
        task = await submit_and_claim(store, creator="ann" if number else None)
        usage = {"input_tokens": 3} if outcome == "ok" else None
        at = (task.started_at or 0) + 2_000_000 + number
        await store.apply(end(task, at, outcome=outcome, result="x", error="e", usage=usage)[1])  # type: ignore[arg-type]
    (failed, timed_out) = (await store.list_failed_tasks(0))[::-1]
    assert (failed.outcome, timed_out.outcome) == ("error", "timeout")
    await put(store, internal_key=f"retry:{failed.id}")
    assert [task.id for task in await store.list_failed_tasks(0)] == [timed_out.id]
    assert await store.list_failed_tasks((timed_out.completed_at or 0) + 1) == []
    spent = sorted(await store.sum_usage(UsageQuery(since=0, until=2**62, by=("actor", "model"))))
    assert [(row.actor, row.model, row.tasks, row.done, row.failed, row.cancelled) for row in spent] == [
        ("", "", 1, 1, 0, 0), ("ann", "", 3, 0, 2, 1),
    ]  # fmt: skip
    assert [row.micros // 1_000_000 for row in spent] == [2, 6]
    assert [(row.input_tokens, row.output_tokens, row.cost_usd, row.untold, row.unpriced) for row in spent] == [
        (3, None, None, 0, 1), (None, None, None, 3, 3),
    ]  # fmt: skip


async def test_usage_of_ended_tasks_is_grouped_as_requested(store: Store) -> None:
    odd = {"input_tokens": "12", "output_tokens": True, "cost_usd": [1], "model": ["m"]}
    nul = {"model": "a\0b"}
    whole = {"input_tokens": 2**62, "output_tokens": 7, "cost_usd": 0.5, "model": 'large "4"'}
    ends = []
    for number, usage in enumerate((whole, whole, nul, odd)):
        task = await submit_and_claim(store, **({"session_key": "chat:1"} if number < 2 else {}))
        ends.append((task.started_at or 0) + number * 900_000_000)
        await store.apply(end(task, ends[-1], outcome="ok", result="x" * 5000, usage=usage)[1])

    async def rows(*by: By, **more: Any) -> list[UsageRow]:
        return sorted(await store.sum_usage(UsageQuery(**{"since": 0, "until": 2**62, "by": by, **more})), key=str)

    (total,) = await rows()
    assert (total.tasks, total.input_tokens, total.output_tokens, total.cost_usd) == (4, 2.0**63, 14, 1.0)
    assert (total.untold, total.unpriced, total.actor, total.day) == (2, 2, None, None)
    models = {row.model: row.tasks for row in await rows("model")}
    assert models.pop('large "4"') == 2
    assert sum(models.values()) == 2
    assert {row.session: row.tasks for row in await rows("session")} == {"": 2, "chat:1": 2}
    assert [row.day for row in await rows("day")] == sorted({iso(at)[:10] for at in ends})
    assert [row.tasks for row in await rows(session_key="chat:1")] == [2]
    assert [row.tasks for row in await rows(since=ends[1], until=ends[3])] == [2], "the end is not counted"


async def test_a_page_of_large_events_ends_early_and_is_marked(store: Store) -> None:
    events = tuple(event(TaskProgress(text=str(n) * 1_500_000), n) for n in range(5))
    await store.apply(Changes(events=events))
    first = await store.read_events(0, limit=4)
    assert ([stored_event.seq for stored_event in first], first.next) == ([1, 2, 3], 3)
    second = await store.read_events(3, limit=4)
    assert ([stored_event.seq for stored_event in second], second.next) == ([4, 5], None)
