"""The relay on PostgreSQL: sends messages between processes by LISTEN and NOTIFY, in one Python thread.

A notification is limited to 8 kB, so a message is split into numbered chunks. PostgreSQL delivers the chunks in order
and loses none while the connection is open. A gap in the numbers means that chunks were lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import selectors
import threading
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from midwatch.domain.relay import EVERYBODY
from midwatch.stores.postgres import CONNECTION_OPTIONS, explain
from midwatch.stores.postgres_tx import Connection

log = logging.getLogger("midwatch.relay")

CHANNEL = "midwatch.relay"
OURS = "midwatch relay"
OPTIONS = {
    **CONNECTION_OPTIONS,
    # A notification does not wait for the disk, because this would block the commits of other notifications.
    "options": "-c synchronous_commit=off",
    "connect_timeout": 2,
    "application_name": OURS,
}
MAX_CHUNK_BYTES = 7_900  # a notification must be shorter than 8000 bytes
MOST_PARTS = 4000
MOST_AT_ONCE = 64
MOST_WAITING = 1000
MOST_SENDERS = 1000
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
DESK = "SELECT oid FROM pg_namespace WHERE nspname = current_schema()"
"""The query for the id of the schema. A database may have several desks, each with its own schema and channels."""
NOTIFY = "SELECT pg_notify(channel, chunk) FROM unnest(%s::text[], %s::text[]) AS notes (channel, chunk)"


class Chunk(NamedTuple):
    """A part of a message.

    `run` identifies the connection of the sender. `number` counts the sender's messages to a channel.
    """

    sender: str
    run: str
    number: int
    part: int
    parts: int
    text: str

    def line(self) -> str:
        """Return the chunk as one line of text."""
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, line: str) -> Chunk:
        """Parse a line. Raise ValueError if it is not a chunk."""
        sender, run, number, part, parts, text = line.split(" ", 5)
        return cls(sender, run, int(number), int(part), int(parts), text)


def split_message(sender: str, run: str, number: int, body: str) -> Iterator[Chunk]:
    """Split the text `body` of a message into chunks. The text is ASCII, so it can be split anywhere."""
    room = MAX_CHUNK_BYTES - len(Chunk(sender, run, number, MOST_PARTS, MOST_PARTS, "").line())
    parts = max(1, -(-len(body) // room))
    for part in range(parts):
        yield Chunk(sender, run, number, part + 1, parts, body[part * room : (part + 1) * room])


class Assembly:
    """Joins the chunks of one sender on one channel into messages."""

    def __init__(self) -> None:
        self._run: str | None = None
        self._number = 0
        self._parts: list[str] = []

    def add(self, chunk: Chunk) -> tuple[str | None, bool]:
        """Add a chunk. Return the message if this was its last chunk, else None; and whether chunks were lost."""
        lost = False
        if chunk.run != self._run:
            lost = self._run is not None  # the sender has reconnected; messages between are lost
            self._run, self._number, self._parts = chunk.run, chunk.number - 1, []
        elif not self._parts and chunk.number == self._number:
            return None, False  # the rest of a lost message
        if (chunk.number, chunk.part) != (self._number + 1, len(self._parts) + 1):
            lost, self._parts = True, []
            if chunk.part != 1:
                self._number = chunk.number
                return None, True
            self._number = chunk.number - 1
        self._parts.append(chunk.text)
        if chunk.part < chunk.parts:
            return None, lost
        whole, self._parts, self._number = "".join(self._parts), [], chunk.number
        return whole, lost


class _Outgoing(NamedTuple):
    to: str
    topic: str
    data: Any


class PostgresRelay:
    """The relay of the process `id`. It implements `midwatch.domain.relay.Relay`."""

    def __init__(self, url: str, id_: str) -> None:
        self.id = id_
        self._url = url
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: deque[_Outgoing | asyncio.Future[None]] = deque()
        self._on_message: dict[str, Callable[[str, Any], None]] = {}
        self._on_connect: list[Callable[[], None]] = []
        self._on_loss: list[Callable[[str], None]] = []
        self._cut_off = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._bell = self._ringer = -1
        self._run = ""
        self._desk: int | str = ""
        self._numbers: Counter[str] = Counter()
        self._assemblies: dict[tuple[str, str], Assembly] = {}

    # -- the port ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        if self._thread is None and not self._closed.is_set():
            self._loop = asyncio.get_running_loop()
            self._bell, self._ringer = os.pipe()
            os.set_blocking(self._bell, False)
            os.set_blocking(self._ringer, False)
            self._thread = threading.Thread(target=self._run_thread, name="midwatch-relay", daemon=True)
            self._thread.start()

    def on_message(self, topic: str, listener: Callable[[str, Any], None]) -> None:
        self._on_message[topic] = listener

    def on_connect(self, listener: Callable[[], None]) -> None:
        self._on_connect.append(listener)

    def on_loss(self, listener: Callable[[str], None]) -> None:
        self._on_loss.append(listener)

    def send(self, to: str, topic: str, data: Any) -> bool:
        self.open()
        if self._cut_off or self._closed.is_set() or len(self._outbox) >= MOST_WAITING:
            return False
        self._outbox.append(_Outgoing(to, topic, data))
        self._wake_thread()
        return True

    async def flush(self) -> None:
        if self._thread is None or self._cut_off or self._closed.is_set():
            return
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outbox.append(flushed)
        self._wake_thread()
        await flushed

    async def close(self) -> None:
        self._closed.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._wake_thread()
            await asyncio.to_thread(thread.join)
            os.close(self._bell)
            os.close(self._ringer)

    def _wake_thread(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full, so the thread wakes up anyway
            os.write(self._ringer, b"x")

    # -- in the thread -------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        pause, warned = PAUSE_SECONDS, False
        while not self._closed.is_set():
            try:
                with psycopg.connect(self._url, autocommit=True, **OPTIONS) as connection:
                    self._begin(connection)
                    pause, warned = PAUSE_SECONDS, False
                    self._exchange(connection)
            except Exception as problem:
                if not warned and not self._closed.is_set():
                    why = explain(problem, self._url) if isinstance(problem, psycopg.Error) else repr(problem)
                    log.warning("live events are not sent to other processes until the connection is back: %s", why)
                warned = True
            self._cut_off = True
            self._drop()
            self._closed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        self._drop()

    def _begin(self, connection: Connection) -> None:
        [self._desk] = connection.execute(DESK).fetchone() or ["none"]
        for name in (EVERYBODY, self.id):
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel(name))), prepare=False)
        self._run = uuid.uuid4().hex[:8]
        self._numbers.clear()
        self._assemblies.clear()
        self._cut_off = False
        self._call_on_loop(_call, self._on_connect)

    def _exchange(self, connection: Connection) -> None:
        with selectors.DefaultSelector() as ready:
            for file in (connection.fileno(), self._bell):
                ready.register(file, selectors.EVENT_READ)
            while True:
                for notify in connection.notifies(timeout=0):
                    self._receive(notify)
                if self._outbox:
                    self._send_some(connection)
                elif self._closed.is_set():
                    return
                else:
                    ready.select()
                    with suppress(BlockingIOError):
                        os.read(self._bell, 4096)

    def _send_some(self, connection: Connection) -> None:
        notes: list[tuple[str, str]] = []
        flushed: list[asyncio.Future[None]] = []
        try:
            while self._outbox and len(notes) < MOST_AT_ONCE:
                item = self._outbox.popleft()
                if isinstance(item, _Outgoing):
                    notes += self._chunks(item)
                else:
                    flushed.append(item)
            if notes:
                channels, chunks = zip(*notes, strict=True)
                connection.execute(NOTIFY, (list(channels), list(chunks)))
        finally:
            if flushed:
                self._call_on_loop(_resolve, flushed)

    def _chunks(self, item: _Outgoing) -> list[tuple[str, str]]:
        try:
            body = json.dumps([item.topic, item.data])
        except (TypeError, ValueError) as problem:
            log.error("a message about %s is not sent to other processes: %s", item.topic, problem)
            return []
        chunks = list(split_message(self.id, self._run, self._numbers[item.to] + 1, body))
        if len(chunks) > MOST_PARTS:
            log.error("a message about %s is not sent to other processes: %d bytes are too many", item.topic, len(body))
            return []
        self._numbers[item.to] += 1
        return [(self._channel(item.to), chunk.line()) for chunk in chunks]

    def _channel(self, name: str) -> str:
        return f"{CHANNEL}.{self._desk}.{name}"

    def _receive(self, notify: psycopg.Notify) -> None:
        try:
            chunk = Chunk.parse(notify.payload)
            if chunk.sender == self.id:
                return
            name = notify.channel, chunk.sender
            if name not in self._assemblies and len(self._assemblies) >= MOST_SENDERS:
                del self._assemblies[next(iter(self._assemblies))]
            whole, lost = self._assemblies.setdefault(name, Assembly()).add(chunk)
            if lost:
                self._call_on_loop(_call, self._on_loss, chunk.sender)
            if whole is not None:
                self._call_on_loop(self._deliver, chunk.sender, *json.loads(whole))
        except (ValueError, TypeError) as problem:
            log.warning("a malformed message from another process was ignored: %s", problem)

    def _drop(self) -> None:
        """Drop all unsent messages, and let every waiting `flush` return."""
        flushed: list[asyncio.Future[None]] = []
        with suppress(IndexError):
            while True:
                item = self._outbox.popleft()
                if not isinstance(item, _Outgoing):
                    flushed.append(item)
        self._call_on_loop(_resolve, flushed)

    def _call_on_loop(self, listener: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            assert self._loop is not None
            self._loop.call_soon_threadsafe(listener, *args)

    # -- on the loop ---------------------------------------------------------------------------------------------

    def _deliver(self, sender: str, topic: str, data: Any) -> None:
        listener = self._on_message.get(topic)
        if listener is not None and not self._closed.is_set():
            try:
                listener(sender, data)
            except (KeyError, TypeError, ValueError, AttributeError) as problem:  # the sender has another version
                log.warning("unexpected message about %s from process %s was ignored: %r", topic, sender, problem)


def _call(listeners: list[Callable[..., None]], *args: Any) -> None:
    for listener in listeners:
        listener(*args)


def _resolve(flushed: list[asyncio.Future[None]]) -> None:
    for future in flushed:
        if not future.done():
            future.set_result(None)
