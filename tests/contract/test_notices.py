"""Contract of every store: notices to several routes, digests, and the last told run of an automation."""

from __future__ import annotations

from dataclasses import replace

from midwatch.domain.agent import AgentTerms
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import Delivery, join_routes
from midwatch.domain.notice import notify
from midwatch.domain.store import Store
from midwatch.domain.task import end
from midwatch.domain.task_step import TaskStep
from midwatch.services.task_endings import TaskEndings
from records import CLOCK, an_automation, claim_tasks, put, submit_and_claim


async def due_later(store: Store, *about: str, target: str | None = None) -> list[Delivery]:
    """Store a notice for an hourly digest of the channel `phone` about each of these tasks."""
    rows = [
        replace(delivery, target=target)
        for name in about
        for delivery in notify("phone", "digest:hourly/UTC", name, "done", f"{name} is done", CLOCK.now())
    ]
    await store.apply(Changes(deliveries=tuple(rows)))
    return rows


async def test_each_route_gets_each_notice_once(store: Store) -> None:
    route = join_routes(["phone", "team:#ops", "team:#dev"])
    task = await put(store, route=route, notices="phone=off\nLook")
    assert await store.get_task(task.id) == task
    (running,) = await claim_tasks(store)
    changes = end(running, CLOCK.now(), outcome="ok", result="x")[1]
    await store.apply(changes)
    await store.apply(Changes(deliveries=tuple(replace(row, id=f"{row.id}x") for row in changes.deliveries)))
    stored = await store.list_deliveries(task_id=task.id)
    assert {(row.channel, row.target, row.text.splitlines()[0]) for row in stored} == {
        ("team", "#ops", "Done: Look"), ("team", "#dev", "Done: Look"),
    }  # fmt: skip
    assert len(stored) == 2


async def test_a_digest_has_what_is_due_when_it_is_sealed(store: Store) -> None:
    first, second = await due_later(store, "t_1", "t_2")
    await due_later(store, "t_3", target="#ops")
    urgent = notify("phone", "digest:hourly/UTC", "t_1", "asked:a_1", "May I?", CLOCK.now())
    (step,) = notify("other", "digest:hourly/UTC", "g_1", "goal_progress:7", "step 7 of 50", CLOCK.now())
    await store.apply(Changes(deliveries=(step,)))
    assert [part.id for part in await store.seal_digest(step, step.due_at)] == [step.id]
    await store.apply(Changes(deliveries=urgent))
    at = first.due_at
    assert at > CLOCK.now() and await store.find_next_delivery_at() == urgent[0].due_at
    parts = await store.seal_digest(second, at)
    assert [(part.id, part.digest_id) for part in parts] == [(first.id, second.id), (second.id, second.id)]
    (late,) = await due_later(store, "t_4")
    assert [part.id for part in await store.seal_digest(first, at)] == [first.id, second.id]
    sent = Update("delivery", first.id, {"status": "sent"}, {"status": "pending"})
    await store.apply(Changes(updates=(sent,)))
    assert [part.id for part in await store.seal_digest(second, at)] == [second.id]
    assert [part.id for part in await store.list_digest(second.id)] == [first.id, second.id]
    assert await store.seal_digest(first, at) == []
    assert [part.id for part in await store.seal_digest(late, late.due_at)] == [late.id]
    numbered = [
        *notify("phone", "digest:hourly/UTC", "g_1", "goal_progress:3", "step 3", CLOCK.now()),
        *notify("phone", "digest:hourly/UTC", "am_1", "chain_ended:t_1+t_2", "Chain ended early", CLOCK.now()),
    ]
    await store.apply(Changes(deliveries=tuple(numbered)))
    assert [part.id for part in await store.seal_digest(numbered[0], at)] == [row.id for row in numbered]


async def test_a_result_is_told_when_it_differs_from_the_last_told_one(store: Store) -> None:
    async def terms(agent: str) -> AgentTerms:
        return AgentTerms()

    endings = TaskEndings(store, CLOCK, terms)
    automation = an_automation(CLOCK.now(), route="phone:me", notices="changes")
    await store.apply(Changes(records=(automation,)))
    told = []
    for outcome, result in (
        ("ok", "All is well."), ("ok", "ALL  is\nwell."), ("silent", "x"), ("ok", "all is well."), ("error", None),
        ("ok", "all is well."), ("ok", "It burns."), ("ok", "it burns."),
    ):  # fmt: skip
        about = {"cause": "automation", "cause_id": automation.id}
        running = await submit_and_claim(store, route="phone:me", notices="changes\nWatch", **about)
        error = "no" if outcome == "error" else None
        step = TaskStep(*end(running, CLOCK.now(), outcome=outcome, result=result, error=error))  # type: ignore[arg-type]
        await store.apply(await endings.end_attempt(running, step))
        told.append(bool(await store.list_deliveries(task_id=running.id)))
    assert told == [True, False, False, False, True, True, True, False]
    assert await store.find_told_run(automation.id, "phone", None) is None
    last = await store.find_told_run(automation.id, "phone", "me")
    assert last == ("done", "It burns.")
