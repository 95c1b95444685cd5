"""Test automations on a real desk: a whole year, restarts, suspension, people who interfere, and a crash at every
write.

A2 `test_a_timeout_counts_as_a_failure_and_the_next_run_is_on_time`.
A7 `test_a_temporary_failure_is_retried_before_it_counts`.
A8 a cancelled run is not started again: `test_cancelling_a_run_pauses_the_automation_until_it_is_resumed`.
A13 `test_a_crash_at_any_write_loses_and_doubles_nothing`.
A18 `test_a_message_interrupts_a_run_which_continues_afterwards`, `test_threads_of_one_chat_do_not_block_each_other`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from crashing import crash_at_every_write, list_crash_cases, run_crashes
from midwatch import Runtime, Settings
from midwatch.base.clock import LONGEST_NAP, SECOND, SystemClock
from midwatch.base.errors import AgentError, TransientError
from midwatch.base.schedule import parse_moment
from midwatch.domain.agent import AgentTerms, Turn
from midwatch.domain.automation import SPENT, Automation
from midwatch.domain.changes import Changes
from midwatch.domain.event import Event, EventFilter
from midwatch.domain.store import Store
from midwatch.domain.task import AUTOMATION_PAUSES, Task
from midwatch.domain.task_store import TaskFilter
from midwatch.loops.scheduler import Scheduler
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock, RecordingChannel, ScriptedAgent, raise_, result, wait_for
from records import an_automation
from servers import until

START = parse_moment("2026-01-01T00:00:00+00:00", 0, "UTC")
HOUR = 3600 * SECOND


@asynccontextmanager
async def open_desk(home: Path, clock: FakeClock, *agents: ScriptedAgent, **channels: Any) -> AsyncIterator[Runtime]:
    settings = Settings.load(home, shutdown_grace=0, detect_agents=False)
    agents_by_name: dict[str, Any] = {agent.name: agent for agent in agents}
    async with Runtime.open(settings=settings, agents=agents_by_name, channels=channels, clock=clock) as desk:
        yield desk


async def is_idle(desk: Runtime) -> bool:
    """Return whether nothing is due and no task can start now."""
    if isinstance(desk.clock, FakeClock):
        await desk.clock.advance(0)  # wakes timers that were set to the present time
    now = desk.clock.now()
    first = await desk.store.find_next_automation_at()
    if first is not None and first <= now:
        return False
    return all(
        task.waits_until(now) for task in await desk.store.list_tasks(TaskFilter(statuses=("pending", "running")))
    )


async def jump(desk: Runtime, clock: FakeClock, to: int) -> None:
    """Set the clock to `to`, as after a suspended night; sleeping loops notice it within the longest nap."""
    clock.set(to - int(LONGEST_NAP * SECOND))
    await clock.advance(LONGEST_NAP)
    await until(lambda: is_idle(desk))


async def events(desk: Runtime, *kinds: str, after: int | None = 0) -> list[Event]:
    return await desk.store.read_events(after or 0, EventFilter(kinds=kinds), 1000)


# -- time ----------------------------------------------------------------------------------------------------------

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")


DAYS, SPRING, AUTUMN = 45, "2026-02-25", "2026-09-25"
SKIPPED = {"Europe/Berlin": (3, 29, 3, 0), "America/New_York": (3, 8, 3, 0)}
"""The run that replaces 02:30 on the day in spring when that time does not exist: month, day, hour, minute."""


@pytest.mark.parametrize("begin", [SPRING, AUTUMN])
async def test_a_daily_run_happens_once_over_clock_changes_in_three_zones(home: Path, begin: str) -> None:
    start = parse_moment(f"{begin}T00:00:00+00:00", 0, "UTC")
    clock = FakeClock(start)
    async with open_desk(home, clock, ScriptedAgent(result("ok"), name="it")) as desk:
        zones = {}
        for zone in ZONES:
            automation = await desk.automations.create("look", agent="it", cron="30 2 * * *", zone=zone)
            zones[automation.id] = zone
        fired_events: list[Event] = []
        while (due := await desk.store.find_next_automation_at() or 0) < start + DAYS * 24 * HOUR:
            await jump(desk, clock, due)
            fired_events += await events(
                desk, "automation_fired", after=fired_events[-1].seq if fired_events else 0
            )  # older ones were pruned
        runs: dict[str, list[datetime]] = {zone: [] for zone in ZONES}
        for fired in fired_events:
            zone = zones[fired.payload["automation_id"]]
            at = datetime.fromisoformat(fired.payload["scheduled_for"])
            assert (fired.time - int(at.timestamp()) * SECOND) < LONGEST_NAP * SECOND
            runs[zone].append(at.astimezone(ZoneInfo(zone)))
        assert await events(desk, "automation_missed", "automation_paused") == []
        for zone, times in runs.items():
            assert len(times) == DAYS, zone
            days = [at.date() for at in times]
            assert days == sorted(set(days))
            assert (days[-1] - days[0]).days == len(days) - 1  # once each day
            odd = [at for at in times if (at.hour, at.minute) != (2, 30)]
            skipped = [SKIPPED[zone]] if zone in SKIPPED and begin == SPRING else []
            assert [(at.month, at.day, at.hour, at.minute) for at in odd] == skipped
        for automation_id in zones:
            stored_automation = await desk.automations.get(automation_id)
            assert (stored_automation.run_count, stored_automation.consecutive_failures) == (
                len(runs[zones[automation_id]]),
                0,
            )


async def test_an_interval_keeps_its_phase_over_restarts(home: Path) -> None:
    clock = FakeClock(START + 12345 * SECOND)
    agent = ScriptedAgent(result("ok"), name="it")
    async with open_desk(home, clock, agent) as desk:
        automation = await desk.automations.create("look", agent="it", every="24h", missed="once")
    for days, late in ((1, 0), (2, 7), (3, 3600), (4, 59), (6, 40000), (7, 1)):
        clock.set(automation.created_at + (days * 86400 + late) * SECOND)
        async with open_desk(home, clock, agent) as desk:
            await until(lambda desk=desk: is_idle(desk))  # type: ignore[misc]
            due = await desk.store.find_next_automation_at()
            assert due == automation.created_at + (days + 1) * 24 * HOUR
            fired = await events(desk, "automation_fired")
    times = [datetime.fromisoformat(event.payload["scheduled_for"]).timestamp() for event in fired]
    assert [(at - automation.created_at / SECOND) / 86400 for at in times] == [1, 2, 3, 4, 5, 7]


@pytest.mark.parametrize(("missed", "runs"), [("skip", 0), ("once", 1), ("once_within", 1)])
async def test_missed_runs_after_a_suspend_follow_the_policy(home: Path, missed: str, runs: int) -> None:
    clock = FakeClock(START)
    async with open_desk(home, clock, ScriptedAgent(result("ok"), name="it")) as desk:
        automation = await desk.automations.create("look", agent="it", every="1h", missed=missed)
        await until(lambda: is_idle(desk))
        await jump(desk, clock, START + 5 * HOUR + HOUR // 2)
        assert len(await desk.automations.history(automation.id)) == runs
        (event,) = await events(desk, "automation_missed")
        assert event.payload["count"] == 5
        assert event.time <= clock.now()
        await jump(desk, clock, START + 6 * HOUR)
        assert len(await desk.automations.history(automation.id)) == runs + 1


async def test_nothing_is_written_while_nothing_is_due(home: Path) -> None:
    clock = FakeClock(START)
    async with open_desk(home, clock, ScriptedAgent(result("ok"), name="it")) as desk:
        await desk.automations.create("look", agent="it", every="24h")
        await desk.automations.create("never", agent="it", every="1h", enabled=False)
        await until(lambda: is_idle(desk))
        with sqlite3.connect(desk.home.database) as connection:
            version = connection.execute("PRAGMA data_version").fetchone()
            for _ in range(20):
                await clock.advance(600)
                await desk.store.find_next_automation_at()
            assert connection.execute("PRAGMA data_version").fetchone() == version
        connection.close()


# -- ends of runs --------------------------------------------------------------------------------------------------


async def test_a_timeout_counts_as_a_failure_and_the_next_run_is_on_time(home: Path) -> None:
    clock = FakeClock(START)
    agent = ScriptedAgent(wait_for(asyncio.Event()), name="it")
    async with open_desk(home, clock, agent) as desk:
        automation = await desk.automations.create("look", agent="it", every="1h", timeout_seconds=60.0)
        clock.set(START + HOUR - 30 * SECOND)
        await clock.advance(30)
        await until(lambda: _turns(agent, 1))
        await clock.advance(60)
        await until(lambda: is_idle(desk))
        stored_automation = await desk.automations.get(automation.id)
        assert (stored_automation.consecutive_failures, stored_automation.run_count, stored_automation.next_run_at) == (
            1,
            1,
            START + 2 * HOUR,
        )
        assert "timeout" in (stored_automation.last_result or "")
        await clock.advance(300)
        assert len(agent.turns) == 1


async def _turns(agent: ScriptedAgent, count: int) -> bool:
    return len(agent.turns) >= count


async def test_a_temporary_failure_is_retried_before_it_counts(home: Path) -> None:
    clock = FakeClock(START)
    agent = ScriptedAgent(raise_(TransientError("too many requests")), name="it")
    async with open_desk(home, clock, agent) as desk:
        automation = await desk.automations.create("look", agent="it", every="24h")
        await jump(desk, clock, START + 24 * HOUR)
        waited = []
        while task := await desk.automations.open_run(automation.id):
            waited.append((task.due_at - clock.now()) / SECOND)
            assert (await desk.automations.get(automation.id)).consecutive_failures == 0
            await jump(desk, clock, task.due_at)
        assert tuple(waited) == AUTOMATION_PAUSES
        stored_automation = await desk.automations.get(automation.id)
        assert (stored_automation.consecutive_failures, stored_automation.run_count) == (1, 1)
        assert len(agent.turns) == 6


async def test_three_failures_pause_an_automation_with_one_notice(home: Path) -> None:
    clock, channel = FakeClock(START), RecordingChannel("there")
    agent = ScriptedAgent(raise_(AgentError("no luck")), name="it")
    async with open_desk(home, clock, agent, there=channel) as desk:
        automation = await desk.automations.create("look", agent="it", every="1h", route="there")
        for hour in range(1, 6):
            await jump(desk, clock, START + hour * HOUR)
        await channel.until(lambda c: any(delivery.notice == "automation_paused" for delivery in c.delivered))
        (notice,) = [delivery for delivery in channel.tried if delivery.notice == "automation_paused"]
        assert f"midwatch automation resume {automation.id}" in notice.text
        assert len(await desk.automations.history(automation.id)) == 3
        assert (await desk.automations.resume(automation.id)).consecutive_failures == 0
        await jump(desk, clock, START + 6 * HOUR)
        stored_automation = await desk.automations.get(automation.id)
        assert (stored_automation.status, stored_automation.consecutive_failures) == ("active", 1)


async def test_an_answer_that_is_the_quiet_token_is_not_delivered(home: Path) -> None:
    clock, channel = FakeClock(START), RecordingChannel("there")
    async with open_desk(home, clock, ScriptedAgent(result(" NOTHING "), name="it"), there=channel) as desk:
        automation = await desk.automations.create(
            "look", agent="it", every="1h", route="there", notices="all", quiet="NOTHING", max_runs=1
        )
        await jump(desk, clock, START + HOUR)
        (run,) = await desk.automations.history(automation.id)
        assert (run.outcome, run.status) == ("silent", "done")
        assert await desk.notifications.list() == []
        assert (await desk.automations.get(automation.id)).consecutive_failures == 0


async def test_a_due_run_replaces_a_running_one(home: Path) -> None:
    clock, channel, first_only = FakeClock(START), RecordingChannel("there"), asyncio.Event()
    agent = ScriptedAgent(wait_for(first_only), name="it")
    async with open_desk(home, clock, agent, there=channel) as desk:
        about = {"route": "there", "notices": "all"}
        automation = await desk.automations.create("look", agent="it", every="1h", overlap="replace", **about)
        clock.set(START + HOUR - 30 * SECOND)
        await clock.advance(30)
        await until(lambda: _turns(agent, 1))
        clock.set(START + 2 * HOUR - 30 * SECOND)
        await clock.advance(30)
        await until(lambda: _turns(agent, 2))
        second, first = await desk.automations.history(automation.id)
        assert (second.status, first.outcome, first.attempt) == ("running", "cancelled", 1)
        assert first == await desk.tasks.wait(first.id)
        assert (first.error or "").startswith("replaced by the run that was due at ")
        after = await desk.automations.get(automation.id)
        assert (after.run_count, after.consecutive_failures, after.waiting_run_at) == (2, 0, None)
        assert (after.last_result or "").startswith("replaced: ")
        notices = [delivery.notice for delivery in await desk.store.list_deliveries()]
        assert [notice for notice in notices if not notice.startswith("alert:")] == ["started", "started"]
        first_only.set()
        await until(lambda: is_idle(desk))
        assert (await desk.tasks.get(second.id)).outcome == "ok"


async def test_the_run_of_a_trigger_replaces_a_running_one(home: Path) -> None:
    clock, channel, first_only = FakeClock(START), RecordingChannel("there"), asyncio.Event()
    agent = ScriptedAgent(wait_for(first_only), name="it")
    async with open_desk(home, clock, agent, there=channel) as desk:
        about = {"agent": "it", "route": "there", "notices": "all"}
        hook = [{"kind": "webhook", "sign": "github"}]
        automation = await desk.automations.create("look", triggers=hook, overlap="replace", **about)
        link = [{"kind": "after", "automations": [automation.id]}]
        following = await desk.automations.create("tell", triggers=link, **about)
        for turns in (1, 2):
            await desk.triggers.test(automation.id)
            await until(lambda turns=turns: _turns(agent, turns))
        await until(lambda: desk.triggers.firings(following.id))
        second, first = await desk.automations.history(automation.id)
        assert (second.status, first.outcome, first.error) == (
            "running",
            "cancelled",
            "replaced by the run of a trigger.",
        )
        assert ((await desk.automations.get(automation.id)).last_result or "").startswith("replaced: ")
        notices = [delivery.notice for delivery in await desk.store.list_deliveries()]
        assert [notice for notice in notices if not notice.startswith("alert:")] == ["started", "started"]
        first_only.set()
        await until(lambda: is_idle(desk))


async def test_a_cancelled_run_is_not_repeated(home: Path) -> None:
    clock = FakeClock(START)
    agent = ScriptedAgent(wait_for(asyncio.Event()), name="it")
    async with open_desk(home, clock, agent) as desk:
        automation = await desk.automations.create("look", agent="it", every="1h")
        clock.set(START + HOUR - 30 * SECOND)
        await clock.advance(30)
        await until(lambda: _turns(agent, 1))
        run = await desk.automations.open_run(automation.id)
        assert run is not None
        await desk.tasks.cancel(run.id)
        await until(lambda: is_idle(desk))
        await clock.advance(600)
        stored_automation = await desk.automations.get(automation.id)
        assert (stored_automation.run_count, stored_automation.consecutive_failures, stored_automation.next_run_at) == (
            1,
            0,
            START + 2 * HOUR,
        )
        assert len(agent.turns) == 1


async def test_cancelling_a_run_pauses_the_automation_until_it_is_resumed(home: Path) -> None:
    clock = FakeClock(START)
    agent = ScriptedAgent(wait_for(asyncio.Event()), name="it")
    async with open_desk(home, clock, agent) as desk:
        await desk.sessions.create(agent="it", key="chat:1")
        automation = await desk.automations.create("look", agent="it", every="1h", session_key="chat:1")
        clock.set(START + HOUR - 30 * SECOND)
        await clock.advance(30)
        await until(lambda: _turns(agent, 1))
        await desk.sessions.interrupt("chat:1", actor="ann")
        await until(lambda: is_idle(desk))
        stored_automation = await desk.automations.get(automation.id)
        assert (stored_automation.status, stored_automation.paused_why, stored_automation.run_count) == (
            "paused",
            "ann interrupted its run",
            1,
        )
        await jump(desk, clock, START + 5 * HOUR)
        assert len(agent.turns) == 1
        assert (await desk.automations.resume(automation.id)).next_run_at == START + 6 * HOUR


# -- people who interfere ------------------------------------------------------------------------------------------


async def test_a_message_interrupts_a_run_which_continues_afterwards(home: Path) -> None:
    clock, free = FakeClock(START), asyncio.Event()
    order: list[str] = []

    async def work(turn: Turn) -> str:
        order.append(turn.prompt)
        if turn.prompt == "look":
            await free.wait()
        return "ok"

    agent = ScriptedAgent(work, name="it", terms=AgentTerms(on_crash="rerun"))
    async with open_desk(home, clock, agent) as desk:
        await desk.sessions.create(agent="it", key="chat:1")
        automation = await desk.automations.create("look", agent="it", every="1h", session_key="chat:1", max_runs=1)
        clock.set(START + HOUR - 30 * SECOND)
        await clock.advance(30)
        await until(lambda: _turns(agent, 1))
        run = await desk.automations.open_run(automation.id)
        assert run is not None
        message = await desk.sessions.send("chat:1", "hello")
        async with asyncio.timeout(30):
            assert (await desk.tasks.wait(message.id)).outcome == "ok"
        free.set()
        async with asyncio.timeout(30):
            ended_run = await desk.tasks.wait(run.id)
        assert order == ["look", "hello", "look"]
        assert (ended_run.outcome, ended_run.interruptions, ended_run.failures) == ("ok", 1, 0)
        stored_automation = await desk.automations.get(automation.id)
        assert (stored_automation.run_count, stored_automation.status, stored_automation.paused_why) == (
            1,
            "paused",
            SPENT,
        )
        assert len(await events(desk, "automation_fired")) == 1
        assert [event.payload["reason"] for event in await events(desk, "task_interrupted")] == ["yield"]


async def test_a_waiting_message_goes_before_a_waiting_run(home: Path) -> None:
    clock, free = FakeClock(START), asyncio.Event()
    order: list[str] = []

    async def work(turn: Turn) -> str:
        order.append(turn.prompt)
        if turn.prompt == "first":
            await free.wait()
        return "ok"

    agent = ScriptedAgent(work, name="it")
    async with open_desk(home, clock, agent) as desk:
        await desk.sessions.create(agent="it", key="chat:1")
        automation = await desk.automations.create("look", agent="it", every="1h", session_key="chat:1")
        await desk.sessions.send("chat:1", "first")
        await until(lambda: _turns(agent, 1))
        clock.set(START + HOUR - 30 * SECOND)
        await clock.advance(30)
        await until(lambda: desk.automations.open_run(automation.id))
        await desk.sessions.send("chat:1", "second")
        free.set()
        await until(lambda: is_idle(desk))
        assert order == ["first", "second", "look"]


async def test_threads_of_one_chat_do_not_block_each_other(home: Path) -> None:
    clock, free = FakeClock(START), asyncio.Event()

    async def work(turn: Turn) -> str:
        if turn.prompt == "long":
            await free.wait()
        return "ok"

    agent = ScriptedAgent(work, name="it")
    async with open_desk(home, clock, agent) as desk:
        long = await desk.automations.create("long", agent="it", every="1h", session_key="chat:1|thread:a")
        automations = [
            await desk.automations.create("short", agent="it", every="1h", session_key=key)
            for key in ("chat:1|thread:b", "chat:1", "chat:2|thread:a")
        ]
        same = await desk.automations.create("same", agent="it", every="24h", session_key="chat:1|thread:a|message:9")
        clock.set(START + HOUR - 30 * SECOND)
        await clock.advance(30)
        for automation in automations:
            await until(lambda automation=automation: _outcome(desk, automation, "ok"))  # type: ignore[misc]
        running = await desk.automations.open_run(long.id)
        assert running is not None
        assert running.status == "running"
        waiting = await desk.automations.run(same.id)
        assert (await desk.tasks.get(waiting.id)).wait == "session"
        free.set()
        await until(lambda: _outcome(desk, same, "ok"))


async def _outcome(desk: Runtime, automation: Automation, outcome: str) -> bool:
    return any(task.outcome == outcome for task in await desk.automations.history(automation.id))


async def test_a_conversation_is_continued_unless_each_run_is_fresh(home: Path) -> None:
    clock = FakeClock(START)
    agent = ScriptedAgent(result("ok", thread_id="th_2"), name="it")
    async with open_desk(home, clock, agent) as desk:
        await desk.automations.create("look", agent="it", every="1h", resume_thread_id="th_1", max_runs=2)
        fresh = await desk.automations.create("anew", agent="it", every="1h", fresh=True, max_runs=2)
        for hour in (1, 2):
            await jump(desk, clock, START + hour * HOUR)
        assert [turn.thread_id for turn in agent.turns if turn.prompt == "look"] == ["th_1", "th_2"]
        assert [turn.thread_id for turn in agent.turns if turn.prompt == "anew"] == [None, None]
        assert (await desk.automations.get(fresh.id)).resume_thread_id is None


# -- two processes -------------------------------------------------------------------------------------------------


async def open_store_of_kind(kind: str, url: str) -> Store:
    return await PostgresStore.open(url) if kind == "postgres" else await SqliteStore.open(url)


async def race(kind: str, url: str) -> None:
    """Run one of the processes: wait for the start signal, then fire all due automations."""
    store = await open_store_of_kind(kind, url)

    async def terms(agent: str) -> AgentTerms:
        return AgentTerms()

    scheduler = Scheduler(store, SystemClock(), lambda: True, terms, terms)
    print("ready", flush=True)
    sys.stdin.readline()
    await scheduler.look()
    await store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_two_processes_fire_each_due_automation_once(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("database") if kind == "postgres" else str(tmp_path / "midwatch.db")
    store = await open_store_of_kind(kind, url)
    now = SystemClock().now()
    many = [an_automation(now - n, id=f"am_{n:03}", session_key=f"s:{n}", next_run_at=now - n) for n in range(200)]
    await store.apply(Changes(records=tuple(many)))
    racers = [program("race", kind, url) for _ in range(2)]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert (await asyncio.to_thread(racer.stdout.readline)).strip() == "ready"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        for racer in racers:
            assert await asyncio.to_thread(racer.wait, 60) == 0
        for automation in many:
            (run,) = await store.list_runs(automation.id)
            assert run.internal_key == f"{automation.id}@{automation.next_run_at}"
            stored_automation = await store.get_automation(automation.id)
            assert stored_automation is not None
            assert (stored_automation.run_count, stored_automation.revision) == (1, 1)
        fired = await store.read_events(0, EventFilter(kinds=("automation_fired",)), 1000)
        assert Counter(event.payload["automation_id"] for event in fired) == {automation.id: 1 for automation in many}
        assert await store.read_events(0, EventFilter(kinds=("automation_missed",)), 1000) == []
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
        await store.close()


def program(*arguments: str) -> subprocess.Popen[str]:
    """Run this file as a program of its own."""
    folder = Path(__file__).parent.parent
    argv = [sys.executable, str(Path(__file__)), *arguments]
    return subprocess.Popen(
        argv, env={**os.environ, "PYTHONPATH": str(folder)}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


# -- crashes -------------------------------------------------------------------------------------------------------

BODIES, TIME = "bodies", "time"
SCENARIOS: dict[str, dict[str, Any]] = {
    "rerun": {"on_crash": "rerun", "max_runs": 2},
    "fail": {"on_crash": "fail", "max_runs": 2, "route": "console"},
    "errors": {"on_crash": "rerun", "route": "console"},
    "given back": {"on_crash": "rerun", "max_runs": 1, "jitter_seconds": 600.0},
}


async def run_scenario(home: Path, name: str) -> None:
    """Run the whole scenario from its present state to its end."""
    clock = FakeClock(int((home / TIME).read_text()) if (home / TIME).exists() else START)

    async def work(turn: Turn) -> str:
        with (home / BODIES).open("a") as file:
            file.write(f"{turn.env['MIDWATCH_TASK']}\n")
        if name == "errors":
            raise AgentError("no luck")
        return "ok"

    def to(moment: int) -> None:
        (home / TIME).write_text(str(moment))
        clock.set(moment - int(LONGEST_NAP * SECOND))

    async with open_desk(home, clock, ScriptedAgent(work, name="it")) as desk:
        automations = await desk.automations.list("all")
        automation = (
            automations[0]
            if automations
            else await desk.automations.create("x", agent="it", every="1h", **SCENARIOS[name])
        )
        while True:
            await until(lambda: is_idle(desk))
            if name == "given back":
                first = (await desk.automations.history(automation.id))[-1:]
                if first and first[0].status == "pending" and first[0].attempt == 0:
                    await desk.tasks.cancel(first[0].id)
                    continue
            automation = await desk.automations.get(automation.id)
            run = await desk.automations.open_run(automation.id)
            if automation.status != "active":
                return
            due = [at for at in (automation.next_run_at, run.due_at if run else None) if at is not None]
            to(min(due))
            await clock.advance(LONGEST_NAP)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("name", "when"), list_crash_cases(SCENARIOS))
async def test_a_crash_at_any_write_loses_and_doubles_nothing(tmp_path: Path, name: str, when: str) -> None:
    outcomes: Counter[str] = Counter()
    for crash_at in await run_crashes(__file__, "die", str(tmp_path), name, when):
        outcomes += await check_outcome(tmp_path / str(crash_at), name)
    if name == "fail":
        assert outcomes["lost"]  # otherwise no crash interrupted a run


async def check_outcome(home: Path, name: str) -> Counter[str]:
    """Check the data that a crashed process and its successor left, and return the outcomes of the runs."""
    store = await SqliteStore.open(home / "midwatch.db")
    try:
        (automation,) = await store.list_automations(statuses=("active", "paused", "deleted"))
        runs = (await store.list_runs(automation.id, 100))[::-1]
        log = await store.read_events(0, limit=2000)
        notices = Counter(delivery.notice for delivery in await store.list_deliveries(limit=500))
    finally:
        await store.close()
    bodies = Counter(line.partition("/")[0] for line in (home / BODIES).read_text().split())
    kinds = Counter(event.kind for event in log)
    assert kinds["automation_fired"] == len(runs) == len({run.internal_key for run in runs})
    assert kinds["task_finished"] == len(runs) == kinds["task_submitted"]
    assert kinds["automation_paused"] == 1
    assert kinds["automation_missed"] == 0
    assert not any(run.open for run in runs)
    assert automation.status == "paused"
    hours = [(int((run.internal_key or "").partition("@")[2]) - automation.created_at) // HOUR for run in runs]
    assert hours == list(range(1, len(runs) + 1))  # each due time once, without a gap
    outcomes: Counter[str] = Counter(run.outcome or "" for run in runs)
    given_back = outcomes["cancelled"]
    assert automation.run_count == len(runs) - given_back
    if automation.max_runs:
        assert automation.run_count == automation.max_runs
    _check_scenario(name, automation, runs, outcomes, bodies, notices)
    return outcomes


def _check_scenario(
    name: str,
    automation: Automation,
    runs: list[Task],
    outcomes: Counter[str],
    bodies: Counter[str],
    notices: Counter[str],
) -> None:
    if name == "rerun":
        assert outcomes == {"ok": 2}
    elif name == "fail":
        assert set(outcomes) <= {"ok", "lost"}
        assert all(count == 1 for count in bodies.values())  # work that had begun is never repeated
        lost_last = runs[-1].outcome == "lost"
        assert notices["automation_paused"] == int(lost_last)
        assert ("lost" in (automation.paused_why or "")) == lost_last
        assert notices["failed"] == outcomes["lost"]
    elif name == "errors":
        assert outcomes == {"error": 3}
        assert (automation.consecutive_failures, notices["automation_paused"], notices["failed"]) == (3, 1, 3)
    else:
        assert outcomes == {"ok": 1, "cancelled": 1}


if __name__ == "__main__":
    if sys.argv[1] == "race":
        asyncio.run(race(sys.argv[2], sys.argv[3]))
    else:
        crash_at_every_write(run_scenario, Path(sys.argv[2]), sys.argv[3], sys.argv[4])
