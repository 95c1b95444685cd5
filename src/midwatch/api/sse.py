"""Server-sent events: streams that share encoded frames and end when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from midwatch.api.reply import to_json
from midwatch.base.errors import LimitReached, StoreUnavailable
from midwatch.base.text import cut
from midwatch.domain.event import Event
from midwatch.domain.identity import Actor, agent_task
from midwatch.domain.watch_state import SessionState, TaskState
from midwatch.live.bus import TEXTS, InitialView

HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": still here\n\n"
SEND_SECONDS = 2.0
PIECE = 64 * 1024
CONNECTION = "midwatch.connection"
"""The server stores two functions in the extensions of the ASGI scope, under this key: `abort` ends the connection at
once, and `write` writes a piece of a stream at once, or returns False if the client reads slowly."""
KEPT_FRAMES = 1024
KEPT_BYTES = 16 * 1024 * 1024
LARGEST_KEPT = KEPT_BYTES // 4
"""Large frames are kept, too, so that many clients that read slowly share the bytes they have not read."""
MAX_PER_ATTEMPT = 8
MAX_PLAIN = 200
"""At most this many connections, or a fifth of all connections, are not used for streams."""
FEW_EVENTS = 16
CATCHING_UP = 4
"""How many streams that have to send many events encode them at the same time."""
LONGEST_TEXT = 2000
"""Maximum characters of a text in an event of a brief stream. The stored record has the whole text."""
LONGEST_MESSAGE = 20_000
"""Maximum characters of a message or a task's text in the state at the start of a stream about one session or task."""
MOST_TEXT = 256 * 1024
"""Above this number of characters in all messages of a state, older messages have `LONGEST_TEXT` characters."""

logger = logging.getLogger(__name__)

Batches = AsyncGenerator[list[Any], None]


class Shape(NamedTuple):
    """The format of the events of a stream.

    In a brief stream, which people read, long texts are cut. A scoped stream is about one task or session, so its live
    events do not contain the id of the task or the key of the session.
    """

    brief: bool = False
    scoped: bool = False


LOG = Shape()


def encode(event: Event, shape: Shape = LOG) -> bytes:
    """Return an event as a frame. Only a stored event has an id, so a client resumes after the last stored event."""
    if not event.seq:  # live events are frequent and short, so they have as few fields as possible
        scope = {} if shape.scoped else {"task_id": event.task_id, "session_key": event.session_key}
        return b"event: %s\ndata: %s\n\n" % (event.kind.encode(), to_json({**scope, "payload": event.payload}))
    data = event.snapshot()
    if shape.brief and event.kind in TEXTS:
        data["payload"] = _shorten_payload(event.payload, TEXTS[event.kind])
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.kind.encode(), to_json(data))


def _shorten_payload(payload: Any, name: str) -> Any:
    text = payload.get(name)
    if not isinstance(text, str) or len(text) <= LONGEST_TEXT:
        return payload
    return {**payload, name: cut(text, LONGEST_TEXT), "cut": len(text)}


def encode_state(shown: InitialView) -> bytes:
    """Return the state at the start of a stream as a frame.

    A client that reconnects sends the id of the last frame, and gets the events that it missed.
    """
    state = shown.state
    data = state.snapshot()
    partial = [{"message_id": p.message_id, "task_id": p.task_id, "text": p.text} for p in shown.partial]
    if isinstance(state, TaskState):
        data["partial"] = partial[-1] if partial else None
        _shorten([data["task"]], LONGEST_MESSAGE)
    elif isinstance(state, SessionState):
        data["partial"] = partial
        data["screen"] = shown.screen
        _shorten_messages(data["messages"])
        _shorten([data["running"] or {}, *data["queue"]], LONGEST_TEXT)
    else:
        _shorten(data["running"], LONGEST_TEXT)
    return b"id: %d\nevent: state\ndata: %s\n\n" % (state.as_of_seq, to_json(data))


def _shorten_messages(messages: Sequence[dict[str, Any]]) -> None:
    """Cut the texts of messages. The texts of older messages are cut more if all together are too long."""
    left = MOST_TEXT
    for message in reversed(messages):
        _shorten([message], LONGEST_MESSAGE if left > 0 else LONGEST_TEXT)
        left -= len(message.get("text") or "")


def _shorten(records: Iterable[dict[str, Any]], longest: int) -> None:
    """Cut the texts of messages and tasks. A cut message gets the field `cut`: the length of its whole text."""
    for record in records:
        for name in ("text", "prompt", "result", "error"):
            text = record.get(name)
            if text and len(text) > longest:
                record[name] = cut(text, longest)
                if name == "text":
                    record["cut"] = len(text)


class Streams:
    """All open streams of a server, which share encoded frames and end together.

    They are counted for each actor. The streams of agents with the token of their attempt are counted for each attempt,
    and apart from the streams of the person whose tasks they run.
    """

    def __init__(self, connections: int = 1000, max_per_actor: int = 250) -> None:
        """Prepare for a server with this maximum of connections."""
        self.closing = False
        self.max_per_actor = max_per_actor
        self.max_per_attempt = MAX_PER_ATTEMPT
        self.max_total = 0
        self.keep_some_for_requests(connections)
        self.catching_up = asyncio.Semaphore(CATCHING_UP)
        self.heartbeat = HEARTBEAT_SECONDS
        """Seconds between two heartbeats of a stream. Each time, the stream checks that its client still has access."""
        self._open: Counter[str] = Counter()
        self._writers: set[asyncio.Task[None]] = set()
        self._frames: dict[tuple[str, Shape], bytes] = {}
        self._kept_bytes = 0
        self._latest: Sequence[Event] = ()
        self._pieces: dict[Shape, bytes] = {}
        """The events that were sent last as pieces of a reply, which many clients share."""

    def __len__(self) -> int:
        return len(self._writers)

    def frame(self, event: Event | InitialView, shape: Shape = LOG) -> bytes:
        """Return the frame of an event or a state. An event is encoded only once for all clients."""
        if isinstance(event, InitialView):
            return encode_state(event)
        key = (event.id, shape)
        frame = self._frames.get(key)
        if frame is None:
            frame = encode(event, shape)
            if event.id and len(frame) <= LARGEST_KEPT:
                self._frames[key] = frame
                self._kept_bytes += len(frame)
                while len(self._frames) > KEPT_FRAMES or self._kept_bytes > KEPT_BYTES:
                    self._kept_bytes -= len(self._frames.pop(next(iter(self._frames))))
        return frame

    def piece(self, events: Sequence[Event], shape: Shape) -> bytes:
        """Return events as one piece of a reply, as HTTP sends it. It is made once for all clients."""
        if events is not self._latest:
            self._latest, self._pieces = events, {}
        if shape not in self._pieces:
            body = b"".join(self.frame(event, shape) for event in events)
            self._pieces[shape] = b"%x\r\n%b\r\n" % (len(body), body)
        return self._pieces[shape]

    def keep_some_for_requests(self, connections: int) -> None:
        """Limit the streams of all actors, so that some of the server's connections are left for other requests."""
        self.max_total = connections - min(MAX_PLAIN, connections // 5)

    def add(self, writer: asyncio.Task[None]) -> None:
        """Register the asyncio task that writes a stream."""
        self._writers.add(writer)
        writer.add_done_callback(self._writers.discard)

    @contextmanager
    def place(self, actor: Actor) -> Iterator[None]:
        """Count a stream, or a request that waits, until the end of the block.

        Raise LimitReached if there are too many of them.
        """
        self.check_room(actor)
        names = [name for name, *_ in self._places(actor)]
        self._open.update(names)
        try:
            yield
        finally:
            self._open.subtract(names)
            for name in names:
                if not self._open[name]:
                    del self._open[name]

    def _places(self, actor: Actor) -> list[tuple[str, int, str]]:
        """Return what the streams of an actor are counted for: a name, the greatest number, and who has so many."""
        everyone = ("", self.max_total, "the server")
        if (task := agent_task(actor)) is None:
            return [(f"actor {actor.name}", self.max_per_actor, actor.name), everyone]
        return [
            (f"attempt {task.id}/{task.attempt}", self.max_per_attempt, "this attempt"),
            (f"agents of {actor.name}", self.max_per_actor, f"the agents of {actor.name}"),
            everyone,
        ]

    def check_room(self, actor: Actor) -> None:
        """Raise StoreUnavailable if the server is stopping, LimitReached if there are too many open streams."""
        if self.closing:
            raise StoreUnavailable("the server is stopping; connect again when it has restarted.")
        for name, most, who in self._places(actor):
            if self._open[name] >= most:
                raise LimitReached(f"{who} has {most} open event streams already; close some first.")

    def close(self) -> None:
        """End every stream cleanly, so that its client connects again when the server has restarted."""
        self.closing = True
        for writer in tuple(self._writers):
            writer.cancel()


class Outlet:
    """The way of new events to a client that has got all earlier ones: all clients get the same bytes in one step."""

    def __init__(self, streams: Streams, shape: Shape = LOG) -> None:
        self.write: Callable[[bytes], bool] | None = None
        """Writes a piece of the reply. It is set while the reply is a stream on a connection of this server."""
        self._streams = streams
        self._shape = shape

    def encode(self, event: Event | InitialView) -> bytes:
        return self._streams.frame(event, self._shape)

    def take(self, events: Sequence[Event]) -> bool:
        """Send events at once; return False if the client reads slowly or the events are large."""
        if self.write is None:
            return False
        piece = self._streams.piece(events, self._shape)
        return len(piece) <= PIECE and self.write(piece)


class EventStream(Response):
    """A reply that sends events until the client disconnects or loses access, or the server stops."""

    media_type = "text/event-stream"

    def __init__(
        self,
        batches: AsyncGenerator[list[Any], None],
        streams: Streams,
        encode: Callable[[Any], bytes],
        actor: Actor,
        still_allowed: Callable[[], Awaitable[bool]],
        headers: Mapping[str, str] = HEADERS,
        outlet: Outlet | None = None,
    ) -> None:
        """Prepare the stream. Raise StoreUnavailable or LimitReached if the server accepts no more streams.

        Events that `outlet` sends do not come in `batches`.
        """
        streams.check_room(actor)
        self.status_code = 200
        self.background = None
        self.init_headers(headers)
        self._batches = batches
        self._streams = streams
        self._encode = encode
        self._actor = actor
        self._still_allowed = still_allowed
        self._sending = False
        self._outlet = outlet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.place(self._actor):
            await self._run(scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send(make_chunk(HEARTBEAT))  # sends the headers now, so that the client knows it is connected
        connection = scope.get("extensions", {}).get(CONNECTION, {})
        if self._outlet is not None:
            self._outlet.write = connection.get("write")
        writer = asyncio.create_task(self._write(send))
        revoked = asyncio.create_task(self._keep_alive(send))
        disconnected = asyncio.create_task(wait_for_disconnect(receive))
        self._streams.add(writer)
        try:
            await asyncio.wait({writer, revoked, disconnected}, return_when="FIRST_COMPLETED")
        finally:
            lost_access = revoked.done()
            for task in (writer, revoked, disconnected):
                task.cancel()
            await asyncio.gather(writer, revoked, disconnected, return_exceptions=True)
        unread = (lost_access and self._sending) or not await _send_in_time(send, make_chunk(b"", more=False))
        if unread and "abort" in connection:
            connection["abort"]()  # the client must not read the rest, or does not read it

    async def _keep_alive(self, send: Send) -> None:
        """Send heartbeats; return when the client has lost access."""
        while True:
            await asyncio.sleep(self._streams.heartbeat)
            if not await self._still_allowed():
                return
            if not self._sending:
                await _send_in_time(send, make_chunk(HEARTBEAT))

    async def _write(self, send: Send) -> None:
        try:
            async for batch in self._batches:
                if len(batch) <= FEW_EVENTS and not any(isinstance(event, InitialView) for event in batch):
                    for piece in self._encode_pieces(batch):
                        await self._send(send, piece)
                else:
                    await self._catch_up(send, batch)
        except Exception:
            logger.exception("an event stream ended because of an unexpected error")
        finally:
            await self._batches.aclose()

    async def _catch_up(self, send: Send, batch: list[Any]) -> None:
        """Send many events. Streams with many events take turns, so that they do not stop the loop."""
        pieces: Iterator[bytes] = self._encode_pieces(batch)
        while True:
            async with self._streams.catching_up:
                await asyncio.sleep(0)
                piece = next(pieces, None)
            if piece is None:
                return
            await self._send(send, piece)

    def _encode_pieces(self, batch: list[Any]) -> Iterator[bytes]:
        """Yield the encoded events in pieces. A large event is a piece of its own, which is shared between streams.

        Encoded events are removed from the batch, so that a stream with a slow client does not hold them twice.
        """
        waiting, size = list[bytes](), 0
        batch.reverse()
        while batch:
            encoded = self._encode(batch.pop())
            if waiting and size + len(encoded) > PIECE:
                yield b"".join(waiting)
                waiting, size = [], 0
            waiting.append(encoded)
            size += len(encoded)
        if waiting:
            yield b"".join(waiting)

    async def _send(self, send: Send, body: bytes) -> None:
        """Send the encoded events in pieces, so that the unsent part stays small if the client reads slowly."""
        self._sending = True
        if len(body) <= 2 * PIECE:
            await send(make_chunk(body))
        else:
            for start in range(0, len(body), PIECE):
                await send(make_chunk(body[start : start + PIECE]))
        self._sending = False


async def _send_in_time(send: Send, message: Message) -> bool:
    """Send a part of a reply. Return False if the client does not read it in time."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send(message)
    except TimeoutError:
        return False
    return True


def make_chunk(body: bytes, *, more: bool = True) -> Message:
    """Return a piece of the reply as an ASGI message. Without `more` it is the last piece."""
    return {"type": "http.response.body", "body": body, "more_body": more}


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
