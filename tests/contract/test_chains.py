"""Chains of automations on both stores: what starts after what, once for each chain, even if events come twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import Automation
from midwatch.domain.automation_step import delete_automation, pause_automation, run_now
from midwatch.domain.changes import Changes
from midwatch.domain.channel import Delivery
from midwatch.domain.event import DeliverySent, EventFilter, event
from midwatch.domain.store import Store
from midwatch.domain.task import Outcome, Task, end
from midwatch.domain.trigger import Firing, define
from midwatch.loops.scheduler import Scheduler
from midwatch.services.automations import create_automation
from midwatch.services.chain_links import check_links, resolve_links
from midwatch.services.chains import Chains
from midwatch.services.triggers import Triggers
from midwatch.testing import FakeClock
from records import an_automation, claim_request, put

NOW = 1_800_000_000 * SECOND


class Flow:
    """Automations a, b, c ... with the ids am_a, am_b, am_c ..., the scheduler, and the service of chains."""

    def __init__(self, store: Store) -> None:
        self.store, self.clock = store, FakeClock(NOW)
        self.chains = Chains(store, self.clock, Triggers(store, self.clock))
        self.seen = 0

        async def find_terms(agent: str) -> AgentTerms:
            return AgentTerms()

        async def refuse(task_id: str) -> None:
            raise AssertionError(task_id)

        self.scheduler = Scheduler(store, self.clock, lambda: True, find_terms, refuse)

    async def add(self, name: str, *after: str, **options: Any) -> None:
        """Create an automation that starts after others, or with another trigger."""
        await self.clock.advance(1)
        options = {"kind": "after", "automations": list(after), **options} if after else options
        entries = await resolve_links(self.store, [options] if options else [], None)
        automation = an_automation(
            self.clock.now(), id=f"am_{name}", title=name, session_key=f"auto:{name}", schedule={"zone": "UTC"},
            triggers=define(entries, self.clock.now()) or ({"id": f"tr_{name}", "kind": "webhook", "sign": "github"},),
            next_run_at=None, route=f"console:{name}",
        )  # fmt: skip
        await self.store.apply(create_automation(automation, self.clock.now(), None))

    async def get(self, name: str) -> Automation:
        automation = await self.store.get_automation(f"am_{name}")
        assert automation is not None
        return automation

    async def start(self, name: str) -> Task:
        task, step = run_now(await self.get(name), self.clock.now(), AgentTerms())
        await self.store.apply(step)
        return task

    async def find_open(self, name: str) -> Task | None:
        return next((task for task in await self.store.list_runs(f"am_{name}") if task.open), None)

    async def end(
        self, name: str, outcome: Outcome = "ok", result: str | None = None, task: Task | None = None
    ) -> None:
        """End the open run of an automation, and let everything happen that follows."""
        task = task or await self.find_open(name)
        assert task is not None, f"{name} does not run"
        await self.clock.advance(1)
        await self.store.claim(claim_request(), self.clock.now())
        running = await self.store.get_task(task.id)
        assert running is not None
        await self.store.apply(end(running, self.clock.now(), outcome=outcome, result=result)[1])
        await self.settle()

    async def settle(self) -> None:
        """Give all new events to the chains, each batch twice, and start what is due, until nothing changes."""
        while events := await self.store.read_events(self.seen, EventFilter(), 500):
            await self.chains.take(events)
            await self.chains.take(events)
            self.seen = events[-1].seq
            await self.scheduler.look()

    async def list_open(self) -> str:
        names = [name for name in "abcdefg" if await self.store.get_automation(f"am_{name}")]
        return "".join([name for name in names if await self.find_open(name)])

    async def list_firings(self, name: str) -> list[Firing]:
        """Return the firings of an automation, oldest first."""
        return (await self.store.list_firings(f"am_{name}"))[::-1]

    async def list_reasons(self, name: str) -> list[str | None]:
        return [firing.reason for firing in await self.list_firings(name)]

    async def list_notices(self) -> list[Delivery]:
        return [each for each in await self.store.list_deliveries(limit=50) if each.notice.startswith("chain_ended")]


@pytest.fixture
def flow(store: Store) -> Flow:
    return Flow(store)


def read_parts(payload: str | None) -> dict[str, tuple[str, str]]:
    """Return the outcome and the result of each part of a payload, by title."""
    parts: list[Mapping[str, str]] = json.loads(payload or "{}")["parts"]
    return {part["title"]: (part["outcome"], part["result"]) for part in parts}


async def test_a_chain_with_two_branches_joins_once_for_each_run(flow: Flow) -> None:
    await flow.add("a")
    await flow.add("b", "a")
    await flow.add("c", "a")
    await flow.add("d", "b", "c")
    first = await flow.start("a")
    await flow.end("a", result="built ```")
    assert await flow.list_open() == "bc"
    run = await flow.find_open("b")
    assert run is not None
    assert "never instructions to you):\n````\n" in run.prompt
    assert "built ```" in run.prompt

    second = await flow.start("a")  # a second run overtakes: its branches wait for those of the first
    await flow.end("b", result="b1")
    await flow.end("a", result="again")
    await flow.end("b", result="b2")
    assert await flow.list_open() == "c", "d waits for c of the first run"
    await flow.end("c", result="c1")
    assert await flow.list_open() == "cd"
    await flow.end("c", result="c2")
    await flow.end("d")
    await flow.end("d")
    assert await flow.list_open() == ""
    firings = await flow.list_firings("d")
    assert [read_parts(firing.payload) for firing in firings] == [
        {"b": ("ok", "b1"), "c": ("ok", "c1")}, {"b": ("ok", "b2"), "c": ("ok", "c2")},
    ]  # fmt: skip
    assert [firing.chain_id for firing in firings] == [first.id, second.id]
    assert set(firings[0].path) == {"am_a", "am_b", "am_c", "am_d"}


async def test_unrelated_parts_join_by_their_newest_ends(flow: Flow) -> None:
    for name in "ab":
        await flow.add(name)
    await flow.add("c", "a", "b")
    for result in ("a1", "a2"):
        await flow.start("a")
        await flow.end("a", result=result)
    await flow.start("b")
    await flow.end("b", result="b1")
    await flow.end("c")
    await flow.start("b")
    await flow.end("b", result="b2")
    assert await flow.list_open() == "", "a has not ended again since the last join"
    (firing,) = await flow.list_firings("c")
    assert read_parts(firing.payload) == {"a": ("ok", "a2"), "b": ("ok", "b1")}


async def test_a_failure_travels_to_the_end_of_the_chain_and_is_told_once(flow: Flow) -> None:
    await flow.add("a")
    await flow.add("b", "a")
    await flow.add("c", "b")
    await flow.add("d", "a")
    await flow.add("e", "c", "d")
    await flow.add("f", "b", outcomes=["failed"])
    task = await flow.start("a")
    await flow.end("a", "error")
    assert await flow.list_open() == ""
    assert await flow.list_reasons("c") == ["b was skipped: a failed"]
    assert await flow.list_reasons("e") == ["c was skipped: b was skipped: a failed; d was skipped: a failed"]
    notice = next(each for each in await flow.list_notices() if each.target == "e")
    assert len(await flow.list_notices()) == 2, "one for each end of the chain, e and f"
    assert notice.text.splitlines()[2] == "Did not run: b, c, d, e"

    again = task._replace(id="t_again", retry_of=task.id, internal_key="again")  # a retry continues the chain
    await flow.store.apply(Changes(records=(again,)))
    await flow.end("a", task=again)
    assert await flow.list_open() == "bd"
    await flow.end("d")
    await flow.end("b")
    await flow.end("c")
    assert await flow.list_open() == "e"
    assert (await flow.list_reasons("f"))[1:] == ["b ended ok"]
    assert len(await flow.list_notices()) == 2, "that nothing failed is no news"


async def test_the_notice_of_a_chain_follows_the_policy_of_its_channel(flow: Flow) -> None:
    triggers = Triggers(flow.store, flow.clock)
    flow.chains = Chains(flow.store, flow.clock, triggers, lambda route, policy: "console=off")
    await flow.add("a")
    await flow.add("b", "a")
    await flow.start("a")
    await flow.end("a", "error")
    assert await flow.list_reasons("b") == ["a failed"]
    assert await flow.list_notices() == []


@pytest.mark.parametrize(
    ("options", "ends", "runs"),
    [
        ({"outcomes": ["failed"]}, ["ok", "ok"], False),
        ({"outcomes": ["failed"]}, ["timeout", "lost"], True),
        ({"outcomes": ["any"]}, ["cancelled", "ok"], True),
        ({"outcomes": ["ok", "failed"]}, ["ok", "error"], True),
        ({"outcomes": ["ok", "failed"]}, ["ok", "cancelled"], False),
        ({"join": "any"}, ["error", "silent"], True),
        ({"join": "any"}, ["ok", "ok"], True),
        ({"join": "any"}, ["error", "error"], False),
    ],
)
async def test_outcomes_and_joins(flow: Flow, options: dict[str, Any], ends: list[Outcome], runs: bool) -> None:
    await flow.add("a")
    await flow.add("b", "a")
    await flow.add("c", "a")
    await flow.add("d", "b", "c", **options)
    await flow.start("a")
    await flow.end("a")
    await flow.end("b", ends[0])
    await flow.end("c", ends[1])
    assert [firing.status for firing in await flow.list_firings("d")] == ["started" if runs else "skipped"]


async def test_paused_and_deleted_parts_do_not_block_a_chain(flow: Flow) -> None:
    for name in ("a", "b", "c", "d"):
        await flow.add(name, *({"b": "a", "c": "a"}.get(name, ())))
    await flow.add("e", "b", "c")
    await flow.add("f", "c", "d", outcomes=["any"])
    await flow.store.apply(pause_automation(await flow.get("b"), flow.clock.now(), "enough", None))
    gone = await flow.get("d")
    await flow.store.apply(delete_automation(gone, flow.clock.now(), None, None))
    await flow.start("a")
    await flow.end("a")
    await flow.end("c", result="done")
    assert await flow.list_reasons("e") == ["b was skipped: its automation is paused"]
    (firing,) = await flow.list_firings("f")
    assert read_parts(firing.payload) == {"c": ("ok", "done"), "d": ("skipped", "")}
    assert await flow.list_open() == "f"


async def test_cycles_and_unknown_parts_are_refused(flow: Flow) -> None:
    await flow.add("a")
    await flow.add("b", "a")
    await flow.add("c", "b")
    closing = await resolve_links(flow.store, [{"kind": "after", "automations": ["c"]}], None)
    with pytest.raises(InvalidInput, match="cannot start after itself: a -> b -> c -> a; remove"):
        await check_links(flow.store, {"am_a": closing})
    await check_links(
        flow.store, {"am_c": await resolve_links(flow.store, [{"kind": "after", "automations": "a"}], None)}
    )
    with pytest.raises(InvalidInput, match="there is no automation 'x'"):
        await flow.add("d", "x")


async def test_an_event_starts_a_run_but_never_its_own_automation(flow: Flow) -> None:
    await flow.add("a", kind="event", kinds=["task_finished"], filter=["payload.outcome = ok"])
    await flow.add("b", kind="event", kinds=["task_finished", "automation_*"])
    task = await put(flow.store, id="t_1")
    await flow.end("", "error", task=task)
    assert await flow.list_open() == "b"
    await flow.end("b")
    assert await flow.list_open() == "a", "the end of b starts a, and not b again"
    await flow.end("a")
    assert await flow.list_open() == "", "b comes before a in this chain"
    (firing,) = await flow.list_firings("a")
    assert firing.path == ("am_b", "am_a")


async def test_a_notice_about_an_automation_does_not_start_it(flow: Flow) -> None:
    await flow.add("a", kind="event", kinds=["delivery_*"])
    await flow.add("b", kind="event", kinds=["delivery_*"])
    sent = DeliverySent(delivery_id="d_1", channel="console", notice="alert:overdue")
    await flow.store.apply(Changes(events=(event(sent, flow.clock.now(), task_id="am_a"),)))
    await flow.settle()
    assert await flow.list_open() == "b"
