"""Calls about events: pages of the log, and streams that continue after a lost connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import orjson

from midwatch.base.errors import Unauthorized
from midwatch.client.http import Answer, Lost, Messages
from midwatch.client.transport import PREFIX, Transport, add_query, drop_none, error_of

if TYPE_CHECKING:
    from midwatch.wire.events import EventInfo, EventPage
    from midwatch.wire.sessions import SessionStateInfo
    from midwatch.wire.tasks import TaskStateInfo

QUIET_SECONDS = 45.0
"""A stream that sends nothing for this long, not even a heartbeat, counts as lost."""
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""The pauses in seconds between attempts to connect to a lost server again; the last pause is repeated."""
PAGE = 1000


class Which(TypedDict, total=False):
    """A filter of events: every field that is set must match.

    The kind `tool_*` matches all kinds that begin with `tool_`.
    """

    kinds: Iterable[str]
    task_id: str | None
    tree: str | None
    turn_id: str | None
    session_key: str | None
    agent: str | None
    actor: str | None


class EventCalls(Transport):
    """The client's calls about events."""

    async def events(
        self, after: int | None = None, *, before: int | None = None, limit: int = PAGE, **which: Unpack[Which]
    ) -> EventPage:
        """Return a page of stored events, in order: events with seq > `after`, or the last events with seq < `before`.

        Raise Pruned if some events after `after` are not kept any more.
        """
        return await self._get("/events", after=after, before=before, limit=limit, **query_of(which))

    async def follow(
        self, after: int = 0, *, live: bool = False, patience: float | None = None, **which: Unpack[Which]
    ) -> AsyncGenerator[EventInfo, None]:
        """Yield events with seq > `after`, without end. Stored events come once and in order.

        `live` adds events that are never stored. After a lost connection the stream continues where it ended. Raise
        NotRunning if there is no server for `patience` seconds.
        """
        async with aclosing(self._frames({**query_of(which), "live": live}, after, patience)) as frames:
            async for frame in frames:
                yield cast("EventInfo", frame)

    async def watch_task(
        self, task_id: str, after: int | None = None, *, patience: float | None = None
    ) -> AsyncGenerator[TaskStateInfo | EventInfo, None]:
        """Yield the state of a task, then stored and live events of the task as they happen. See `watch_session`."""
        async with aclosing(self._frames({"task_id": task_id, "state": True}, after, patience)) as frames:
            async for frame in frames:
                yield cast("TaskStateInfo | EventInfo", frame)

    async def watch_session(
        self, key: str, after: int | None = None, *, kinds: Iterable[str] = (), patience: float | None = None
    ) -> AsyncGenerator[SessionStateInfo | EventInfo, None]:
        """Yield the state of a session, then stored and live events of the session as they happen.

        The state has the kind `state`. `kinds` selects events; long texts in events are cut. With `after`, and after a
        lost connection, the missed events come first, then the state again.
        """
        query = {"session_key": key, "state": True, "kind": list(kinds)}
        async with aclosing(self._frames(query, after, patience)) as frames:
            async for frame in frames:
                yield cast("SessionStateInfo | EventInfo", frame)

    async def _frames(
        self, query: Mapping[str, Any], after: int | None, patience: float | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the frames of a stream, and connect again when a connection is lost."""
        lost_at: float | None = None
        tries = 0
        while True:
            try:
                async with aclosing(self._stream(query, after)) as frames:
                    async for frame in frames:
                        lost_at, tries = None, 0
                        if frame is not None and not (0 < frame.get("seq", 0) <= (after or 0)):
                            after = position(frame, after)
                            yield frame
            except Lost as lost:
                lost_at = lost_at or time.monotonic()
                if patience is not None and time.monotonic() - lost_at >= patience:
                    raise self._unreachable(lost) from None
            except Unauthorized:  # a server that was started again may have a new token
                if not self._move():
                    raise
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1
            self._move()

    async def _stream(self, query: Mapping[str, Any], after: int | None) -> AsyncGenerator[dict[str, Any] | None, None]:
        """Yield None when the stream is connected, then the frames of this one connection.

        A frame of a live event gets the task and the session that the query names.
        """
        ids = {"seq": 0, "task_id": query.get("task_id"), "session_key": query.get("session_key")}
        headers = {**self._headers, "accept": "text/event-stream", "cache-control": "no-store"}
        if after is not None:
            headers["last-event-id"] = str(after)
        target = PREFIX + add_query("/events", drop_none(query))
        async with self._server.stream("GET", target, headers, silence=QUIET_SECONDS) as (status, pieces):
            if status >= 500:
                raise Lost("the server is stopping")
            if status >= 400:
                raise error_of(Answer(status, b"".join([piece async for piece in pieces])))
            yield None
            messages = Messages()
            async for piece in pieces:
                for kind, data in messages.read(piece):
                    frame = orjson.loads(data)
                    stored = kind == "state" or "seq" in frame
                    yield {**({} if stored else ids), "kind": kind, **frame}


def query_of(which: Which) -> dict[str, Any]:
    """Return a filter as the parameters of a query."""
    query = drop_none(which)
    return {"kind": list(query.pop("kinds", ())), **query}


def position(frame: Mapping[str, Any], after: int | None) -> int | None:
    """Return the new position of a reader whose position was `after` and who has now read `frame`."""
    if frame["kind"] == "state":
        return int(frame["as_of_seq"])
    if frame["kind"] == "gap" and (oldest := frame["payload"].get("oldest_seq")) is not None:
        return int(oldest) - 1  # the log may have been replaced by a backup
    return frame["seq"] or after
