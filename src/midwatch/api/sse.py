"""Server-sent events: streams that are encoded once for all readers and end when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from midwatch.api.reply import to_json
from midwatch.base.errors import LimitReached
from midwatch.base.text import cut
from midwatch.domain.event import Event
from midwatch.domain.watch_state import SessionState, TaskState
from midwatch.live.bus import TEXTS, Shown

HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": still here\n\n"
PATIENCE_SECONDS = 2.0
PIECE = 64 * 1024
ABORT = "midwatch.abort"
"""Where the server puts a way to cut the connection, in the scope's extensions."""
KEPT_FRAMES = 1024
LARGEST_KEPT = 64 * 1024
LONGEST_TEXT = 2000
"""Of a text in a stream that is for watching; the record has it whole."""
LONGEST_MESSAGE = 20_000
"""Of a message in the state of a conversation, or of a task in its own state."""

logger = logging.getLogger(__name__)

Batches = AsyncGenerator[Sequence[Event | Shown], None]


class Shape(NamedTuple):
    """How a stream writes its events."""

    brief: bool = False
    """For watching: long texts are cut. Otherwise it is the log, with everything in it."""
    scoped: bool = False
    """Of one task or session, which live events then need not name."""


LOG = Shape()


def encode(event: Event, shape: Shape = LOG) -> bytes:
    """One event as a frame. Only stored events have an id, so a reader resumes after the last stored one."""
    if not event.seq:
        return b"event: %s\ndata: %s\n\n" % (event.kind.encode(), to_json(_passing(event, shape)))
    told = event.snapshot()
    if shape.brief and event.kind in TEXTS:
        told["payload"] = _brief(event.payload, TEXTS[event.kind])
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.kind.encode(), to_json(told))


def _passing(live: Event, shape: Shape) -> dict[str, Any]:
    """A live event, with as little as it needs: there are many, and a reply must not cost a multiple of its size."""
    if shape.scoped:
        return {"payload": live.payload}
    return {"task_id": live.task_id, "session_key": live.session_key, "payload": live.payload}


def _brief(payload: Any, name: str) -> Any:
    text = payload.get(name)
    if not isinstance(text, str) or len(text) <= LONGEST_TEXT:
        return payload
    return {**payload, name: cut(text, LONGEST_TEXT), "cut": len(text)}


def encode_state(shown: Shown) -> bytes:
    """The state as a frame; a reader that comes back says its number and is told what it missed."""
    state = shown.state
    told = state.snapshot()
    partial = [{"message_id": p.message_id, "task_id": p.task_id, "text": p.text} for p in shown.partial]
    if isinstance(state, TaskState):
        told["partial"] = partial[-1] if partial else None
        _shorten([told["task"]], LONGEST_MESSAGE)
    elif isinstance(state, SessionState):
        told["partial"] = partial
        told["screen"] = shown.screen
        _shorten(told["messages"], LONGEST_MESSAGE)
        _shorten([told["running"] or {}, *told["queue"]], LONGEST_TEXT)
    else:
        _shorten(told["running"], LONGEST_TEXT)
    return b"id: %d\nevent: state\ndata: %s\n\n" % (state.as_of_seq, to_json(told))


def _shorten(records: Iterable[dict[str, Any]], longest: int) -> None:
    """Cut the texts of messages and tasks; of a message `cut` says how long it is."""
    for record in records:
        for name in ("text", "prompt", "result", "error"):
            text = record.get(name)
            if text and len(text) > longest:
                record[name] = cut(text, longest)
                if name == "text":
                    record["cut"] = len(text)


class Streams:
    """All open streams of a server: they share encoded frames and can be ended together."""

    def __init__(self, most_of_actor: int = 250) -> None:
        self.closing = False
        self.most_of_actor = most_of_actor
        self.heartbeat = HEARTBEAT_SECONDS
        """Seconds after which a silent stream shows that it lives, and looks whether its reader may still read."""
        self._of_actor: Counter[str] = Counter()
        self._writers: set[asyncio.Task[None]] = set()
        self._frames: dict[tuple[str, Shape], bytes] = {}

    def __len__(self) -> int:
        return len(self._writers)

    def frame(self, event: Event | Shown, shape: Shape = LOG) -> bytes:
        """The event's frame, encoded once however many read it."""
        if isinstance(event, Shown):
            return encode_state(event)
        name = (event.id, shape)
        made = self._frames.get(name)
        if made is None:
            made = encode(event, shape)
            if event.id and len(made) <= LARGEST_KEPT:
                if len(self._frames) >= KEPT_FRAMES:
                    del self._frames[next(iter(self._frames))]
                self._frames[name] = made
        return made

    def add(self, writer: asyncio.Task[None], actor: str) -> None:
        """Take in a stream that has begun."""
        self._writers.add(writer)
        self._of_actor[actor] += 1
        writer.add_done_callback(lambda _: self._remove(writer, actor))

    def _remove(self, writer: asyncio.Task[None], actor: str) -> None:
        self._writers.discard(writer)
        self._of_actor[actor] -= 1
        if not self._of_actor[actor]:
            del self._of_actor[actor]

    def check_room(self, actor: str) -> None:
        """LimitReached when this actor follows too many already: nobody may take all connections."""
        if self._of_actor[actor] >= self.most_of_actor:
            raise LimitReached(f"{actor} follows {self.most_of_actor} streams already; close some first.")

    def close(self) -> None:
        """End every stream; its reader sees a clean end and comes back to the next server."""
        self.closing = True
        for writer in tuple(self._writers):
            writer.cancel()


class EventStream(Response):
    """The reply that follows the log until its reader goes, may no longer read, or the server stops."""

    media_type = "text/event-stream"

    def __init__(
        self,
        batches: AsyncGenerator[Sequence[Any], None],
        streams: Streams,
        shape: Shape,
        actor: str,
        still_allowed: Callable[[], Awaitable[bool]],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        self._batches = batches
        self._streams = streams
        self._shape = shape
        self._actor = actor
        self._still_allowed = still_allowed
        self._sending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send(chunk(HEARTBEAT))  # the headers leave now, so that the reader knows it is connected
        writer = asyncio.create_task(self._write(send))
        revoked = asyncio.create_task(self._stay(send))
        gone = asyncio.create_task(disconnect(receive))
        self._streams.add(writer, self._actor)
        try:
            await asyncio.wait({writer, revoked, gone}, return_when="FIRST_COMPLETED")
        finally:
            ended = revoked.done()
            for task in (writer, revoked, gone):
                task.cancel()
            await asyncio.gather(writer, revoked, gone, return_exceptions=True)
        if (ended and self._sending) or not await _sent_in_time(send, chunk(b"", more=False)):
            abort = scope.get("extensions", {}).get(ABORT)
            if abort is not None:
                abort["call"]()  # what it has not read yet is not for it any more, or never will be read

    async def _stay(self, send: Send) -> None:
        """Show now and then that the stream lives; return once its reader may no longer read."""
        while True:
            await asyncio.sleep(self._streams.heartbeat)
            if not await self._still_allowed():
                return
            if not self._sending:
                await _sent_in_time(send, chunk(HEARTBEAT))

    def _encode(self, event: Any) -> bytes:
        return self._streams.frame(event, self._shape)

    async def _write(self, send: Send) -> None:
        try:
            async for batch in self._batches:
                waiting, size = [], 0
                for event in batch:
                    waiting.append(made := self._encode(event))
                    size += len(made)
                    if size >= PIECE:
                        await self._send(send, b"".join(waiting))
                        waiting, size = [], 0
                if waiting:
                    await self._send(send, b"".join(waiting))
        except Exception:
            logger.exception("a stream of events ended early")
        finally:
            await self._batches.aclose()

    async def _send(self, send: Send, body: bytes) -> None:
        """In pieces: what its reader has not taken yet must stay small."""
        self._sending = True
        if len(body) <= 2 * PIECE:
            await send(chunk(body))
        else:
            for start in range(0, len(body), PIECE):
                await send(chunk(body[start : start + PIECE]))
        self._sending = False


async def _sent_in_time(send: Send, message: Message) -> bool:
    """Send it, unless the reader takes nothing."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await send(message)
    except TimeoutError:
        return False
    return True


def chunk(body: bytes, *, more: bool = True) -> Message:
    """A piece of the reply."""
    return {"type": "http.response.body", "body": body, "more_body": more}


async def disconnect(receive: Receive) -> None:
    """Return when the reader has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
