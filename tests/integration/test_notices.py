"""Test notices from end to end: several routes, policies of channels, chat messages, titles, and digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime
from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.desk.config import Settings
from midwatch.domain.changes import Changes
from midwatch.domain.channel import Delivery
from midwatch.domain.event import EventFilter
from midwatch.domain.notice import notify
from midwatch.loops.courier import Courier, Patience
from midwatch.services.notifications import Notifications
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import FakeClock, RecordingChannel, ScriptedAgent, raise_, result

START = 1_700_000_000 * SECOND  # at 22:13 UTC


def load_settings(home: Path, **settings: Any) -> Settings:
    return Settings.load(home, shutdown_grace=0, detect_agents=False, default_agent="it", **settings)


async def test_each_route_has_the_policy_of_its_channel_unless_the_work_has_one(home: Path) -> None:
    channels = {name: RecordingChannel(name) for name in ("phone", "team")}
    tables = {"phone": {"kind": "console", "notices": "failures"}, "team": {"kind": "console", "notices": "all"}}
    agents = {"it": ScriptedAgent(result("fine")), "bad": ScriptedAgent(raise_(RuntimeError("no")))}
    settings = load_settings(home, channels=tables)
    async with Runtime.open(settings=settings, agents=agents, channels=channels) as desk:
        told = []
        for wish in ({}, {"agent": "bad"}, {"notices": "failures"}):
            task = await desk.tasks.submit("Look\nclosely", route=["phone", "team:#ops x"], **wish)
            await desk.tasks.wait(task.id)
            deliveries = await desk.notifications.list(task_id=task.id)
            told.append(sorted((row.channel, row.target, row.text.partition("\n")[0]) for row in deliveries))
        assert task.snapshot()["route"] == "phone team" and task.snapshot()["notices"] == "failures"
    started, done = ("team", "#ops x", "Started: Look"), ("team", "#ops x", "Done: Look")
    failed = [("phone", None, "Failed: Look"), ("team", "#ops x", "Failed: Look")]
    assert told == [[done, started], [*failed, started], []]


async def test_the_default_route_tells_no_chat_messages_and_an_origin_is_told(home: Path) -> None:
    channel, settings = RecordingChannel("phone"), load_settings(home, notify="console")
    agents = {"it": ScriptedAgent(result("fine"))}
    async with Runtime.open(settings=settings, agents=agents, channels={"phone": channel}) as desk:
        wishes: list[dict[str, Any]] = [
            {}, {"cause": "message"}, {"cause": "message", "route": "phone"}, {"origin_channel": "phone"},
            {"origin_channel": "gone away"},
        ]  # fmt: skip
        tasks = [await desk.tasks.submit("hello", **wish) for wish in wishes]
        for task in tasks:
            await desk.tasks.wait(task.id)
        assert [task.route for task in tasks] == ["console", "console", "phone", "phone", "console"]
        told = [len(await desk.notifications.list(task_id=task.id)) for task in tasks]
        assert told == [1, 0, 1, 1, 1]
        assert tasks[1].notices == "questions"


async def test_a_run_is_named_by_its_title(home: Path) -> None:
    channel = RecordingChannel("phone")
    agents = {"it": ScriptedAgent(result("fine"))}
    async with Runtime.open(settings=load_settings(home), agents=agents, channels={"phone": channel}) as desk:
        about = {"every": "1h", "title": "Morning brief", "route": ["phone", "console"], "notices": "all"}
        automation = await desk.automations.create("Read everything", **about)
        task = await desk.automations.run(automation.id)
        await desk.tasks.wait(task.id)
        rows = await desk.notifications.list(task_id=task.id)
        heads = sorted((row.channel, row.text.partition("\n")[0]) for row in rows)
        assert heads == [
            (channel, f"{word}: Morning brief") for channel in ("console", "phone") for word in ("Done", "Started")
        ]
        edited = await desk.automations.patch(automation.id, {"route": "phone", "notices": None})
        assert (edited.route, edited.notices) == ("phone", None)


def test_several_routes_in_one_text_are_checked(clock: FakeClock, memory: SqliteStore) -> None:
    service = Notifications(memory, clock, {name: RecordingChannel(name) for name in ("phone", "team", "log")})
    for wanted, stored in (
        ("phone", "phone"), ("phone  team:#ops", '["phone", "team:#ops"]'), ("phone phone", "phone"),
        ("team:John Smith", "team:John Smith"), ("team:a b log", '["team:a b", "log"]'),
        (["team:a log"], "team:a log"), ('["phone", "log"]', '["phone", "log"]'),
    ):  # fmt: skip
        assert service.check_route(wanted) == stored, wanted
        assert service.check_route(stored) == stored or " " in stored
    for wrong in ("phone tema:#ops", "tema phone", ["phone", ""], [], ["phone"] * 11):
        with pytest.raises(InvalidInput):
            service.check_route(wrong)


def build_part(about: str, now: int, notice: str = "done") -> Delivery:
    return notify("phone:me", "digest:daily@23:00/UTC", about, notice, f"{notice}: {about}", now)[0]


async def test_a_digest_that_was_sent_and_not_recorded_is_sent_again_with_the_same_id(tmp_path: Path) -> None:
    clock = FakeClock(START)
    store = await SqliteStore.open(tmp_path / "midwatch.db")
    parts = [build_part("t_1", START), build_part("t_2", START, "failed")]
    await store.apply(Changes(deliveries=tuple(parts)))
    channel = RecordingChannel("phone", hang=True)
    courier = Courier(store, clock, {"phone": channel}, lambda: True, Patience(stop=0.05))
    await courier.start()
    clock.set(parts[0].due_at)
    courier.wake()
    await channel.until(lambda c: len(c.tried) == 1)
    await courier.stop()
    await store.close()
    (lost,) = channel.tried

    store = await SqliteStore.open(tmp_path / "midwatch.db")
    late = build_part("t_3", START)
    await store.apply(Changes(deliveries=(late,)))  # it was committed late, and is due at the same time
    channel = RecordingChannel("phone", fail=1)
    courier = Courier(store, clock, {"phone": channel}, lambda: True)
    await courier.start()
    await channel.until(lambda c: len(c.delivered) == 1)
    await clock.advance(2)
    await channel.until(lambda c: len(c.delivered) == 2)
    await courier.stop()
    text = "2 notices, 1 of them about failures\n\nfailed: t_2\n\ndone: t_1"
    again = {(row.id, row.text, row.target) for row in channel.tried if row.id != late.id}
    assert again == {(lost.id, lost.text, lost.target)} == {(parts[0].id, text, "me")}
    assert lost.notice == "digest"
    assert {row.status for row in await store.list_deliveries()} == {"sent"}
    events = await store.read_events(0, EventFilter(kinds=("delivery_sent",)))
    assert sorted(event.payload["delivery_id"] for event in events) == sorted(row.id for row in (*parts, late))
    await store.close()


async def test_a_failed_digest_is_retried_as_a_whole(memory: SqliteStore) -> None:
    clock, channel = FakeClock(START), RecordingChannel("phone", fail=1, permanent=True)
    parts = [build_part(f"t_{number}", START) for number in range(120)]
    await memory.apply(Changes(deliveries=tuple(parts)))
    clock.set(parts[0].due_at)
    courier = Courier(memory, clock, {"phone": channel}, lambda: True)
    await courier.start()
    await channel.until(lambda c: len(c.tried) == 1)
    await courier.stop()
    assert len(await memory.list_deliveries(status="failed", limit=500)) == 120
    await Notifications(memory, clock, {"phone": channel}).retry(parts[7].id)
    await courier.start()
    await channel.until(lambda c: len(c.delivered) == 1)
    await courier.stop()
    assert [row.id for row in channel.tried] == [parts[0].id] * 2
    assert len(await memory.list_deliveries(status="sent", limit=500)) == 120
