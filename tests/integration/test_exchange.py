"""Test live events between processes that share a PostgreSQL: they arrive whole and in order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psycopg
import pytest

from midwatch import Runtime, Settings
from midwatch.base.clock import Clock, SystemClock, Timer
from midwatch.domain.agent import Turn
from midwatch.domain.changes import Changes
from midwatch.domain.event import EVERYTHING, Event, EventFilter, MessageDelta, MessageUpdate, ScreenUpdate, event
from midwatch.domain.relay import EVERYBODY
from midwatch.live.bus import InitialView
from midwatch.live.exchange import EVENTS_TOPIC, FILTERS_SECONDS, FILTERS_TOPIC, RENEW_SECONDS
from midwatch.stores.relay import MAX_CHUNK_BYTES, OURS, Assembly, PostgresRelay, split_message
from midwatch.testing import ScriptedAgent
from postgres import Cluster

MIXED = 'plain, größer, 漢字, 👩🏽‍🚀, \x00, \ud83d, \\ " \n'


# -- chunks --------------------------------------------------------------------------------------------------------


def chunks(*bodies: str, run: str = "r1", first: int = 1) -> list[Any]:
    return [chunk for n, body in enumerate(bodies, first) for chunk in split_message("i_1", run, n, body)]


def assemble(assembly: Assembly, lines: list[Any]) -> tuple[list[str], int]:
    """Return the whole messages and the number of reported losses."""
    results = [assembly.add(chunk) for chunk in lines]
    return [whole for whole, _ in results if whole is not None], sum(lost for _, lost in results)


def test_messages_of_any_length_arrive_unchanged() -> None:
    dice = random.Random(5)
    bodies = [json.dumps("".join(dice.choices(MIXED, k=dice.choice((0, 1, 700, 5000, 40_000))))) for _ in range(60)]
    message_chunks = chunks(*bodies)
    assert max(len(chunk.line().encode()) for chunk in message_chunks) <= MAX_CHUNK_BYTES < 8000
    assert assemble(Assembly(), [type(chunk).parse(chunk.line()) for chunk in message_chunks]) == (bodies, 0)


def test_a_message_with_a_missing_chunk_is_dropped_and_reported() -> None:
    bodies = ["a" * 30_000, "b" * 30_000, "c" * 30_000]
    message_chunks = chunks(*bodies)
    middle = [n for n, chunk in enumerate(message_chunks) if chunk.number == 2]
    assert len(middle) > 3
    for index in middle:
        assert assemble(Assembly(), message_chunks[:index] + message_chunks[index + 1 :]) == (
            [bodies[0], bodies[2]],
            1,
        ), index
    assert assemble(Assembly(), [c for c in message_chunks if c.number != 2]) == ([bodies[0], bodies[2]], 1)


def test_chunks_in_the_wrong_order_are_dropped() -> None:
    bodies = ["a" * 30_000, "b" * 30_000, "c" * 30_000]
    message_chunks = chunks(*bodies)
    at = next(n for n, chunk in enumerate(message_chunks) if chunk.number == 2) + 1
    message_chunks[at], message_chunks[at + 1] = message_chunks[at + 1], message_chunks[at]
    assert assemble(Assembly(), message_chunks) == ([bodies[0], bodies[2]], 1)


def test_a_message_interrupted_by_a_new_run_counts_as_lost() -> None:
    assembly = Assembly()
    assert assemble(assembly, chunks("a", "b" * 30_000)[:-1]) == (["a"], 0)
    assert assemble(assembly, chunks("c", "d", run="r2")) == (["c", "d"], 1)


# -- messages ------------------------------------------------------------------------------------------------------


class RecordingRelay:
    """A relay that records its messages."""

    def __init__(self, url: str, name: str) -> None:
        self.relay = PostgresRelay(url, name)
        self.found: list[tuple[str, Any]] = []
        self.connects = 0
        self.lost: list[str] = []
        self._news = asyncio.Event()
        self.relay.on_message("keys", self._record)
        self.relay.on_message(EVENTS_TOPIC, self._record)
        self.relay.on_message(FILTERS_TOPIC, lambda sender, data: self._record(sender, data["wants"]))
        self.relay.on_connect(self._on_connect)
        self.relay.on_loss(self.lost.append)

    def _record(self, sender: str, data: Any) -> None:
        self.found.append((sender, data))
        self._news.set()

    def _on_connect(self) -> None:
        self.connects += 1
        self._news.set()

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not enough():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def relays(url: str, *names: str) -> AsyncIterator[list[RecordingRelay]]:
    """Yield connected relays."""
    recorders = [RecordingRelay(url, name) for name in names]
    for recorder in recorders:
        recorder.relay.open()
    try:
        for recorder in recorders:
            await recorder.until(lambda recorder=recorder: recorder.connects > 0)  # type: ignore[misc]
        yield recorders
    finally:
        for recorder in recorders:
            await recorder.relay.close()


def list_connections(url: str, kill: bool = False) -> dict[int, Any]:
    """Return the time of the last statement of each relay connection by pid. With `kill` the connections are ended."""
    end = ", pg_terminate_backend(pid)" if kill else ""
    query = f"SELECT pid, query_start{end} FROM pg_stat_activity WHERE application_name = %s AND datname = %s"
    with psycopg.connect(url, autocommit=True) as admin:
        return {row[0]: row[1] for row in admin.execute(query, (OURS, admin.info.dbname))}


async def wait_for_connections(url: str, count: int) -> list[int]:
    """Return the relay connections once there are so many: each is opened in the background."""
    async with asyncio.timeout(30):
        while len(connections := list_connections(url)) != count:
            await asyncio.sleep(0.02)
    return list(connections)


def peers(desk: Runtime) -> set[str]:
    """Return the processes that subscribe to live events of this one."""
    exchange = desk.bus._exchange
    assert exchange is not None
    return set(exchange._peers)


async def test_a_message_goes_to_one_process_or_to_all_others(database: str) -> None:
    async with relays(database, "i_a", "i_b", "i_c") as (a, b, c):
        long = [MIXED * 5000, {"n": 1}]
        assert a.relay.send("i_b", "keys", {"text": "x\x00"})
        assert a.relay.send("i_b", "keys", long)
        assert a.relay.send("i_b", "keys", object())  # the error is logged and affects nobody
        assert a.relay.send("i_b", "unheard of", 1)
        assert a.relay.send("i_nobody", "keys", 1)
        assert a.relay.send(EVERYBODY, "keys", "all")
        await a.relay.flush()
        await b.until(lambda: len(b.found) == 3)
        await c.until(lambda: len(c.found) == 1)
        assert b.found == [("i_a", {"text": "x\x00"}), ("i_a", long), ("i_a", "all")]
        assert c.found == [("i_a", "all")]
        assert (a.found, a.lost, b.lost, c.lost) == ([], [], [], [])


async def test_a_relay_reconnects_and_reports_a_possible_loss(database: str) -> None:
    async with relays(database, "i_a", "i_b") as (a, b):
        a.relay.send("i_b", "keys", 1)
        await b.until(lambda: b.found == [("i_a", 1)])
        list_connections(database, kill=True)
        await a.until(lambda: a.connects == 2)
        await b.until(lambda: b.connects == 2)
        assert a.relay.send("i_b", "keys", 2)
        await b.until(lambda: b.found == [("i_a", 1), ("i_a", 2)])


async def test_without_a_database_sending_does_not_block() -> None:
    lonely = RecordingRelay("postgresql://midwatch@127.0.0.1:1/nothing", "i_a")
    async with asyncio.timeout(20):
        lonely.relay.send("i_b", "keys", 1)
        await lonely.relay.flush()
        assert not lonely.relay.send("i_b", "keys", 2)
        await lonely.relay.close()
    assert lonely.connects == 0


# -- live events ---------------------------------------------------------------------------------------------------


class Writer:
    """An agent that writes texts on request."""

    def __init__(self) -> None:
        self.text = ""
        self.turn: Turn | None = None
        self._orders: asyncio.Queue[str | None] = asyncio.Queue()
        self._began = asyncio.Event()
        self.agent = ScriptedAgent(self._perform)

    async def wait_for_start(self) -> None:
        await self._began.wait()

    def write(self, text: str) -> None:
        self._orders.put_nowait(text)

    def end(self) -> None:
        self._orders.put_nowait(None)

    async def _perform(self, turn: Turn) -> str:
        self.turn = turn
        self._began.set()
        while (text := await self._orders.get()) is not None:
            name = f"{turn.task_id}.{turn.attempt}"
            await turn.emit(MessageDelta(message_id=name, offset=len(self.text), text=text))
            self.text += text
        return self.text


class Reader:
    """A watcher that joins the pieces of the text."""

    def __init__(self, desk: Runtime, which: EventFilter = EVERYTHING, state: bool = True) -> None:
        self.text = ""
        self.first: InitialView | None = None
        self.kinds: list[str] = []
        self.screen: str | None = None
        self.result: str | None = None
        self.holes = 0
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._watch(desk, which) if state else self._follow(desk, which))

    async def _watch(self, desk: Runtime, which: EventFilter) -> None:
        async with aclosing(desk.bus.watch(which, desk.store.read_desk_state)) as batches:
            async for batch in batches:
                for update in batch:
                    self._see(update)

    async def _follow(self, desk: Runtime, which: EventFilter) -> None:
        async with aclosing(desk.bus.follow(0, which, live=True)) as events:
            async for update in events:
                self._see(update)

    def _see(self, update: Event | InitialView) -> None:
        self._news.set()
        if isinstance(update, InitialView):
            self.first = update
            self.text = update.partial[0].text if update.partial else ""
            self.screen = update.screen
            return
        self.kinds.append(update.kind)
        if update.kind == "message_delta":
            self.holes += update.payload["offset"] > len(self.text)
            self.text = self.text[: update.payload["offset"]] + update.payload["text"]
        elif update.kind == "screen_update":
            self.screen = update.payload["screen"]
        elif update.kind == "task_finished":
            self.result = update.payload["result"]

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not enough():
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


def desk(folder: Path, name: str, url: str, **options: Any) -> Any:
    """Open a runtime with a home of its own."""
    return Runtime.open(settings=Settings.load(folder / name, db=url, detect_agents=False, shutdown_grace=0), **options)


class FastRenewalClock(SystemClock):
    """A clock that makes subscriptions renew almost at once."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return super().call_later(0.05 if seconds == RENEW_SECONDS else seconds, callback)


class AdvancingClock(SystemClock):
    """A clock that can be advanced."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


@asynccontextmanager
async def run_writer(
    folder: Path, url: str, clock: Clock | None = None
) -> AsyncIterator[tuple[Writer, Runtime, Runtime]]:
    """Run a turn in one runtime, with another runtime beside it."""
    writer = Writer()
    async with (
        desk(folder, "a", url, agents={"it": writer.agent}, role="worker", clock=clock) as there,
        desk(folder, "b", url, work=False) as here,
        asyncio.timeout(50),
    ):
        await here.tasks.submit("x", agent="it")
        await writer.wait_for_start()
        yield writer, there, here
        writer.end()


async def test_a_follower_reads_text_of_another_process_in_order(database: str, tmp_path: Path) -> None:
    dice = random.Random(3)
    async with run_writer(tmp_path, database) as (writer, _, here):
        assert writer.turn is not None
        readers = [
            Reader(here),
            Reader(here, EventFilter(task_id=writer.turn.task_id)),
            Reader(here, EventFilter(kinds=("message_delta", "task_finished")), state=False),
        ]
        pieces = ["".join(dice.choices("abcä漢👩‍🚀\n", k=dice.randrange(1, 60))) for _ in range(200)]
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(dice.choice((0, 0, 0.001, 0.01)))
        for reader in readers:
            await reader.until(lambda reader=reader: reader.text == "".join(pieces))  # type: ignore[misc]
        writer.end()
        for reader in readers:
            await reader.until(lambda reader=reader: reader.result is not None)  # type: ignore[misc]
            assert (reader.result, reader.holes) == (writer.text, 0)
            last = max(n for n, kind in enumerate(reader.kinds) if kind == "message_delta")
            assert last < reader.kinds.index("task_finished")
            assert "gap" not in reader.kinds
            await reader.end()


async def test_a_late_follower_gets_the_beginning_of_the_text(database: str, tmp_path: Path) -> None:
    async with run_writer(tmp_path, database) as (writer, there, here):
        own = Reader(there)
        writer.write(MIXED)
        await own.until(lambda: own.text == MIXED)
        first = Reader(here)
        await first.until(lambda: first.text == MIXED)
        second = Reader(here)  # the text its process has received before is in its state
        await second.until(lambda: second.first is not None)
        assert second.text == MIXED
        late = Reader(here, EventFilter(kinds=("message_delta",)), state=False)
        writer.write(" and more")
        for reader in (first, second, own):
            await reader.until(lambda reader=reader: reader.text == MIXED + " and more")  # type: ignore[misc]
            assert reader.holes == 0
            await reader.end()
        await late.end()


async def test_a_very_long_piece_is_complete(database: str, tmp_path: Path) -> None:
    async with run_writer(tmp_path, database) as (writer, _, here):
        reader = Reader(here)
        writer.write(MIXED * 3500)
        writer.write("漢" * 100_000)
        await reader.until(lambda: len(reader.text) == 3500 * len(MIXED) + 100_000)
        assert (reader.text, reader.holes) == (MIXED * 3500 + "漢" * 100_000, 0)
        await reader.end()


async def test_screens_are_sent_to_followers_in_other_processes(database: str, tmp_path: Path) -> None:
    async with run_writer(tmp_path, database) as (writer, _, here):
        assert writer.turn is not None
        await writer.turn.emit(ScreenUpdate(screen="$ " + MIXED))
        reader = Reader(here, EventFilter(session_key=writer.turn.session_key))
        await reader.until(lambda: reader.screen == "$ " + MIXED)
        await writer.turn.emit(ScreenUpdate(screen="$ exit"))
        await reader.until(lambda: reader.screen == "$ exit")
        await reader.end()


async def test_a_lost_connection_is_a_gap_and_the_turn_continues(database: str, tmp_path: Path) -> None:
    async with run_writer(tmp_path, database) as (writer, _, here):
        reader = Reader(here)
        writer.write("before ")
        await reader.until(lambda: reader.text == "before ")
        assert len(list_connections(database, kill=True)) == 2
        writer.write("meanwhile ")
        await reader.until(lambda: "gap" in reader.kinds)
        await reader.until(lambda: reader.text == "before meanwhile ")
        writer.write("after")
        await reader.until(lambda: reader.text == "before meanwhile after")
        list_connections(database, kill=True)
        writer.write(", and an end that nobody sees")
        writer.end()
        await reader.until(lambda: reader.result is not None)
        assert reader.result == "before meanwhile after, and an end that nobody sees" == writer.text
        assert reader.holes == 0
        await reader.end()


def plain(text: str, task_id: str, **more: Any) -> dict[str, Any]:
    """Return a piece of text as another process sends it."""
    payload = {"message_id": f"{task_id}.1", "offset": 0, "text": text}
    return {"kind": "message_delta", "time": 1, "payload": payload, "task_id": task_id, "attempt": 1, **more}


async def test_a_piece_stays_between_the_stored_events_around_it(database: str, tmp_path: Path) -> None:
    async with relays(database, "i_other") as [recorder], desk(tmp_path, "b", database, work=False) as here:
        reader = Reader(here)
        await recorder.until(lambda: len(recorder.found) > 0)
        await reader.until(lambda: reader.first is not None)
        [me] = {sender for sender, _ in recorder.found}
        message = {"seq": 1, "dropped": 0, "fresh": True, "events": [plain("early", "t_1", of_a_newer_version=1)]}
        recorder.relay.send(me, EVENTS_TOPIC, message)
        recorder.relay.send(me, EVENTS_TOPIC, {"seq": "nonsense"})
        recorder.relay.send(
            me, EVENTS_TOPIC, {**message, "seq": 0, "fresh": False, "events": [plain("held back", "t_2")]}
        )
        whole = MessageUpdate(message_id="t_3.1", role="agent", message="all of it")
        await here.store.apply(Changes(events=(event(whole, 1, task_id="t_3", attempt=1),)))
        await reader.until(lambda: reader.text == "held back")
        assert reader.kinds == ["message_update", "message_delta", "message_delta"]
        late, end = plain("late", "t_3"), plain("the end", "t_4")
        recorder.relay.send(me, EVENTS_TOPIC, {**message, "seq": 0, "fresh": False, "events": [late, end]})
        await reader.until(lambda: reader.text == "the end")
        assert reader.kinds == ["message_update", *["message_delta"] * 3]
        await reader.end()


async def test_text_is_hidden_until_it_begins_anew(database: str, tmp_path: Path) -> None:
    async with relays(database, "i_other") as [recorder], desk(tmp_path, "b", database, work=False) as here:
        reader = Reader(here)
        await recorder.until(lambda: len(recorder.found) > 0)
        await reader.until(lambda: reader.first is not None)
        [me] = {sender for sender, _ in recorder.found}
        message = {"seq": 0, "dropped": 0, "fresh": False}
        recorder.relay.send(me, EVENTS_TOPIC, {**message, "events": [plain("never seen", "t_1")]})
        recorder.relay.send(me, EVENTS_TOPIC, {**message, "fresh": True, "events": [plain("seen", "t_1")]})
        recorder.relay.send(me, EVENTS_TOPIC, {**message, "dropped": 7, "events": [plain("seen again", "t_1")]})
        await reader.until(lambda: reader.text == "seen again")
        assert reader.kinds == ["message_delta", "gap", "message_delta"]
        await reader.end()


@pytest.mark.parametrize("which", [0, 1])
async def test_one_side_may_lose_its_connection(database: str, tmp_path: Path, which: int) -> None:
    async with run_writer(tmp_path, database) as (writer, _, here):
        [first] = await wait_for_connections(database, 1)
        reader = Reader(here)
        writer.write("before ")
        await reader.until(lambda: reader.text == "before ")
        pids = [first, *(pid for pid in list_connections(database) if pid != first)]
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", (pids[which],))
        writer.write("meanwhile ")
        await reader.until(lambda: reader.text == "before meanwhile ")
        assert "gap" in reader.kinds
        assert reader.holes == 0
        await reader.end()


async def test_nothing_is_sent_without_followers_elsewhere(database: str, tmp_path: Path) -> None:
    async with (
        relays(database, "i_spy") as [spy],
        desk(tmp_path, "c", database, role="worker", clock=FastRenewalClock()) as here,
        run_writer(tmp_path, database) as (writer, there, _),
    ):
        reader = Reader(here)
        writer.write("seen")
        await reader.until(lambda: reader.text == "seen")
        await spy.until(lambda: spy.found.count((here.id, [{}])) > 3)  # a subscription is renewed
        spy.found.clear()
        await reader.end()
        await spy.until(lambda: (here.id, []) in spy.found)
        while peers(there):  # the desk gets the message a moment before or after the spy
            await asyncio.sleep(0.01)
        await there.relay.flush()
        before = list_connections(database)
        assert len(before) == 3
        for n in range(50):
            writer.write(f"unseen {n}")
            await asyncio.sleep(0.01)
        assert list_connections(database) == before
        writer.end()


async def test_a_subscription_that_is_not_renewed_expires(database: str, tmp_path: Path) -> None:
    clock = AdvancingClock()
    async with relays(database, "i_dies") as [dying], run_writer(tmp_path, database, clock) as (writer, there, _):
        own = Reader(there)
        await dying.until(lambda: (there.id, []) in dying.found)  # it is connected now
        writer.write("x")
        await own.until(lambda: own.text == "x")
        dying.relay.send(EVERYBODY, FILTERS_TOPIC, {"wants": [{}], "fresh": True, "ask": False})
        await dying.until(lambda: any("events" in data for _, data in dying.found))
        assert "i_dies" in peers(there)
        clock.seconds = FILTERS_SECONDS + 1
        while "i_dies" in peers(there):
            writer.write("y")
            await asyncio.sleep(0.01)
        there.relay.send("i_dies", "keys", "the last")
        await dying.until(lambda: dying.found[-1] == (there.id, "the last"))
        message_count, before = len(dying.found), list_connections(database)
        writer.write("z")
        await own.until(lambda: own.text.endswith("z"))
        assert (len(dying.found), list_connections(database)) == (message_count, before)
        await own.end()


async def test_a_stalled_connection_does_not_delay_the_turn(
    database: str, postgres: Cluster | str, tmp_path: Path
) -> None:
    if isinstance(postgres, str) or os.geteuid() != 0:
        pytest.skip("only a server of our own can be stopped")
    async with run_writer(tmp_path, database) as (writer, there, here):
        [wire] = await wait_for_connections(database, 1)
        reader, own = Reader(here), Reader(there)
        writer.write("start ")
        await reader.until(lambda: reader.text == "start ")
        os.kill(wire, signal.SIGSTOP)
        try:
            piece = "." * 50_000
            began = time.monotonic()
            for _ in range(60):
                writer.write(piece)
            await own.until(lambda: len(writer.text) == 6 + 60 * len(piece))
            spent = time.monotonic() - began
        finally:
            os.kill(wire, signal.SIGCONT)
        assert spent < 15.0  # if it waited for the connection, it would wait for ever
        await reader.until(lambda: "gap" in reader.kinds)
        writer.end()
        await reader.until(lambda: reader.result is not None)
        assert (reader.result, reader.holes) == (writer.text, 0)
        await reader.end()
        await own.end()


WRITER = """
import asyncio, sys, time
from midwatch import Runtime, Settings
from midwatch.domain.event import MessageDelta
from midwatch.testing import ScriptedAgent

async def work(turn):
    offset = 0
    for _ in range(int(sys.argv[3])):
        text = f"{time.time_ns()} "
        await turn.emit(MessageDelta(message_id=f"{turn.task_id}.{turn.attempt}", offset=offset, text=text))
        offset += len(text)
        await asyncio.sleep(0.05)
    await asyncio.Event().wait()

async def main():
    settings = Settings.load(sys.argv[1], db=sys.argv[2], detect_agents=False, shutdown_grace=0)
    async with Runtime.open(settings=settings, agents={"it": ScriptedAgent(work)}, role="worker"):
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_piece_crosses_processes_quickly(database: str, tmp_path: Path) -> None:
    count = int(os.environ.get("MIDWATCH_RELAY_PIECES", "100"))
    there = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(tmp_path / "a"), database, str(count), start_new_session=True
    )
    delay_by_stamp: dict[str, float] = {}
    try:
        async with desk(tmp_path, "b", database, work=False) as here, asyncio.timeout(60 + count / 15):
            while "it" not in await here.registry.live():
                await asyncio.sleep(0.05)
            task = await here.tasks.submit("x", agent="it")
            async with aclosing(here.bus.follow(0, EventFilter(task_id=task.id), live=True)) as events:
                async for event in events:
                    if event.kind == "message_delta":
                        now = time.time_ns()
                        for stamp in event.payload["text"].split():
                            delay_by_stamp.setdefault(stamp, (now - int(stamp)) / 1e6)
                    if len(delay_by_stamp) == count:
                        break
    finally:
        there.terminate()
        await there.wait()
    delays = list(delay_by_stamp.values())
    cuts = quantiles(delays, n=100)
    print(f"{len(delays)} pieces: p50 {median(delays):.2f} ms, p99 {cuts[98]:.2f} ms, most {max(delays):.2f} ms")
    assert median(delays) < 400
