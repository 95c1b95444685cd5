"""Server-sent events: streams that are encoded once for all readers and end when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from midwatch.api.reply import to_json
from midwatch.event import Event

HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": still here\n\n"
KEPT_FRAMES = 1024
LARGEST_KEPT = 64 * 1024

logger = logging.getLogger(__name__)


def encode(event: Event) -> bytes:
    """One event as a frame. Only stored events have an id, so a reader resumes after the last stored one."""
    name = b"id: %d\n" % event.seq if event.seq else b""
    return b"%sevent: %s\ndata: %s\n\n" % (name, event.kind.encode(), to_json(event.snapshot()))


class Streams:
    """All open streams of a server: they share encoded frames and can be ended together."""

    def __init__(self) -> None:
        self.closing = False
        self._writers: set[asyncio.Task[None]] = set()
        self._frames: dict[str, bytes] = {}

    def frame(self, event: Event) -> bytes:
        """The event's frame, encoded once however many read it."""
        made = self._frames.get(event.id)
        if made is None:
            made = encode(event)
            if event.id and len(made) <= LARGEST_KEPT:
                if len(self._frames) >= KEPT_FRAMES:
                    del self._frames[next(iter(self._frames))]
                self._frames[event.id] = made
        return made

    def add(self, writer: asyncio.Task[None]) -> None:
        """Take in a stream that has begun."""
        self._writers.add(writer)
        writer.add_done_callback(self._writers.discard)

    def close(self) -> None:
        """End every stream; its reader sees a clean end and comes back to the next server."""
        self.closing = True
        for writer in tuple(self._writers):
            writer.cancel()


class EventStream(Response):
    """The reply that follows the log until its reader goes or the server stops."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[Event], streams: Streams) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        self._events = events
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send(chunk(HEARTBEAT))  # the headers leave now, so that the reader knows it is connected
        writer = asyncio.create_task(self._write(send))
        gone = asyncio.create_task(disconnect(receive))
        self._streams.add(writer)
        try:
            while not (await asyncio.wait({writer, gone}, timeout=HEARTBEAT_SECONDS, return_when="FIRST_COMPLETED"))[0]:
                await send(chunk(HEARTBEAT))
        finally:
            for task in (writer, gone):
                task.cancel()
            await asyncio.gather(writer, gone, return_exceptions=True)
        await send(chunk(b"", more=False))

    async def _write(self, send: Send) -> None:
        try:
            async for event in self._events:
                await send(chunk(self._streams.frame(event)))
        except Exception:
            logger.exception("a stream of events ended early")
        finally:
            if isinstance(self._events, AsyncGenerator):
                await self._events.aclose()


def chunk(body: bytes, *, more: bool = True) -> Message:
    """A piece of the reply."""
    return {"type": "http.response.body", "body": body, "more_body": more}


async def disconnect(receive: Receive) -> None:
    """Return when the reader has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
