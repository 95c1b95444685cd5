"""Calls about events: pages of the log, and streams that outlive a lost connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import httpx2
import orjson

from midwatch.client.transport import Transport, error_of, without_none

if TYPE_CHECKING:
    from midwatch.wire.events import EventInfo, EventPage
    from midwatch.wire.sessions import SessionStateInfo
    from midwatch.wire.tasks import TaskStateInfo

QUIET_SECONDS = 45.0
"""A stream that sends nothing for this long, not even a heartbeat, is taken for dead."""
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds between tries to reach a server that went away."""
PAGE = 1000


class Which(TypedDict, total=False):
    """Which events are meant; those that fit all that is said."""

    kinds: Iterable[str]
    """`tool_*` means all that begin so."""
    task_id: str | None
    turn_id: str | None
    session_key: str | None
    agent: str | None
    actor: str | None


class EventCalls(Transport):
    """The log."""

    async def events(
        self, after: int | None = None, *, before: int | None = None, limit: int = PAGE, **which: Unpack[Which]
    ) -> EventPage:
        """One page of stored events, in order: those with seq > `after`, or the last ones with seq < `before`. Pruned
        when some after `after` are not kept any more."""
        return cast(
            "EventPage", await self._get("/events", {"after": after, "before": before, "limit": limit, **asked(which)})
        )

    async def follow(
        self, after: int = 0, *, live: bool = False, patience: float | None = None, **which: Unpack[Which]
    ) -> AsyncGenerator[EventInfo, None]:
        """Every event with seq > `after`, for ever, each stored one once and in order; with `live` also those that are
        never stored. A lost connection is taken up where it broke; NotRunning when there is no server for `patience`
        seconds."""
        async with aclosing(self._frames({**asked(which), "live": live}, after, patience)) as frames:
            async for frame in frames:
                yield cast("EventInfo", frame)

    async def watch_task(
        self, task_id: str, after: int | None = None, *, patience: float | None = None
    ) -> AsyncGenerator[TaskStateInfo | EventInfo, None]:
        """The task as it is, then its events as they come, live ones too. See `watch_session`."""
        async with aclosing(self._frames({"task_id": task_id, "state": True}, after, patience)) as frames:
            async for frame in frames:
                yield cast("TaskStateInfo | EventInfo", frame)

    async def watch_session(
        self, key: str, after: int | None = None, *, kinds: Iterable[str] = (), patience: float | None = None
    ) -> AsyncGenerator[SessionStateInfo | EventInfo, None]:
        """The conversation as it is (its kind is `state`), then its events as they come, live ones too, all or those of
        some kinds; long texts are cut. From `after` on, and after a lost connection, come the events that were missed,
        then the state again."""
        query = {"session_key": key, "state": True, "kind": list(kinds)}
        async with aclosing(self._frames(query, after, patience)) as frames:
            async for frame in frames:
                yield cast("SessionStateInfo | EventInfo", frame)

    async def _frames(
        self, query: Mapping[str, Any], after: int | None, patience: float | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The frames of a stream, over as many connections as it takes."""
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
            except httpx2.TransportError as lost:
                lost_at = lost_at or time.monotonic()
                if patience is not None and time.monotonic() - lost_at >= patience:
                    raise self._unreachable(lost) from None
            await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
            tries += 1
            self._move()

    async def _stream(self, query: Mapping[str, Any], after: int | None) -> AsyncGenerator[dict[str, Any] | None, None]:
        """The frames of one connection; None when it has been made. What the query says of live ones is added."""
        known = {"seq": 0, "task_id": query.get("task_id"), "session_key": query.get("session_key")}
        limits = httpx2.Timeout(30.0, connect=5.0, read=QUIET_SECONDS)
        headers = {"accept": "text/event-stream"} | ({} if after is None else {"last-event-id": str(after)})
        async with self._http.sse(
            "/events", params=query, headers=headers, timeout=limits, max_event_size=None
        ) as source:
            if source.response.status_code >= 500:
                raise httpx2.ReadError("the server is stopping")
            if source.response.is_error:
                await source.response.aread()
                raise error_of(source.response)
            yield None
            async for message in source:
                told = orjson.loads(message.data)
                whole = message.event == "state" or "seq" in told
                yield {**({} if whole else known), "kind": message.event, **told}


def asked(which: Which) -> dict[str, Any]:
    """A filter as a query."""
    said = without_none(which)
    return {"kind": list(said.pop("kinds", ())), **said}


def position(frame: Mapping[str, Any], after: int | None) -> int | None:
    """Where a reader is that was at `after` and has read this frame."""
    if frame["kind"] == "state":
        return int(frame["as_of_seq"])
    if frame["kind"] == "gap" and (oldest := frame["payload"].get("oldest_seq")) is not None:
        return int(oldest) - 1  # what comes now may be another log, restored from a backup
    return frame["seq"] or after
