"""Events: all output of midwatch.

Every change of state and every step of an agent is an event. The event is written in the same transaction as the
change. An `Event` is an envelope around one payload; each kind of payload is a frozen class. Live kinds (deltas) are
shown to clients and are never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Protocol

from midwatch.base.clock import iso
from midwatch.base.ids import new_id
from midwatch.domain.event.payload import KINDS as KINDS
from midwatch.domain.event.payload import Payload as Payload
from midwatch.domain.event.payload import kind as kind
from midwatch.domain.fields import Example

# isort: off
# In the order of the catalogue; one place to import every kind from.
from midwatch.domain.event.work import *  # noqa: F403
from midwatch.domain.event.records import *  # noqa: F403
# isort: on

VERSION = 1
"""The version of the envelope and of the payloads; it is raised when the meaning of a field changes."""


class Event(NamedTuple):
    """One fact. `seq` is 0 until the event is stored; stored events have consecutive numbers."""

    kind: Annotated[str, Example("task_started")]
    time: int
    payload: Annotated[Mapping[str, Any], Example({"agent": "demo", "owner": "i_06f2m8", "host": "desk"})]
    id: Annotated[str, Example("e_06f2m8yq5s2f8d0c7b1a")] = ""
    seq: Annotated[int, Example(3)] = 0
    version: int = VERSION
    agent_id: Annotated[str | None, Example("demo")] = None
    turn_id: str | None = None
    parent_turn_id: str | None = None
    session_key: str | None = None
    task_id: Annotated[str | None, Example("t_06f2m8yq3kq5r0v9x1w2")] = None
    attempt: Annotated[int | None, Example(1)] = None
    actor: str | None = None
    iteration: int | None = None
    trace_id: str | None = None
    span_id: str | None = None
    trace_path: str | None = None
    source: str | None = None

    def snapshot(self) -> dict[str, Any]:
        """Return the event as JSON shows it: without empty fields, and with the time as ISO 8601."""
        shown = {name: value for name, value in self._asdict().items() if value is not None}
        return {**shown, "task_id": self.task_id, "time": iso(self.time)}


def event(payload: Payload, now: int, **meta: Any) -> Event:
    """Return an event with this payload; `meta` are the other fields of the envelope."""
    return Event(payload.kind, now, payload.data(), new_id("e", now), **meta)


def call_of(call: Event) -> str:
    """Return the name that is the same for the start event and the end event of a call.

    It is the id of the call, or else the name of the tool.
    """
    payload = call.payload
    if call.kind.startswith("llm"):
        return f"llm {payload.get('request_id')}"
    if call.kind.startswith("probe"):
        return f"probe {payload.get('probe')}"
    return f"tool {payload.get('tool_call_id') or payload.get('tool')}"


def end_call(start: Event, why: str, duration: float | None = None) -> Payload:
    """Return the payload that ends an interrupted call of a model or a tool, or an interrupted command of a task."""
    payload = start.payload
    if start.kind == "probe_start":
        return ProbeEnd(probe=payload["probe"], duration=duration, error=why)  # noqa: F405
    if start.kind == "llm_request":
        return LlmResponse(  # noqa: F405
            model=payload.get("model"), finish_reason="cut_off", latency=duration, request_id=payload.get("request_id")
        )
    return ToolExecEnd(  # noqa: F405
        tool=payload["tool"], tool_call_id=payload.get("tool_call_id"), duration=duration, is_error=True, result=why
    )


def kind_text(name: str) -> str:
    """Return the name of a kind as text for people; a kind that only a newer version knows is marked as unknown."""
    return name if name in KINDS else f"event_kind({name})"


class KindMatcher(NamedTuple):
    """A set of kinds of events, given by names and by beginnings of names."""

    names: frozenset[str]
    beginnings: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Return whether the set contains the kind `name`."""
        return name in self.names or name.startswith(self.beginnings)


@lru_cache(256)
def parse_kinds(kinds: tuple[str, ...]) -> KindMatcher:
    """Parse the kinds of a filter: `tool_*` means every kind that begins with `tool_`."""
    names = frozenset(name for name in kinds if not name.endswith("*"))
    return KindMatcher(names, tuple(name[:-1] for name in kinds if name.endswith("*")))


def kinds_of(name: str) -> list[str]:
    """Return the known kinds that match a name of a filter."""
    return [known for known in KINDS if parse_kinds((name,)).has(known)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """A filter of events; an empty filter matches all events.

    The kind `tool_*` matches every kind that begins with `tool_`. `tree` is the id of a task or goal: its events match,
    and the events of all work that grew out of it.
    """

    kinds: tuple[str, ...] = ()
    tree: str | None = None
    task_id: str | None = None
    turn_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    actor: str | None = None

    @property
    def of_task(self) -> str | None:
        """Return the only task whose events can match, or None.

        The id of a turn begins with the id of its task.
        """
        return self.task_id or (self.turn_id.partition(".")[0] if self.turn_id else None)

    def matches(self, event: Event) -> bool:
        """Return whether the event matches the filter."""
        return (
            (not self.kinds or parse_kinds(self.kinds).has(event.kind))
            and (self.tree is None or self.tree == event.task_id or _has(event.trace_path, self.tree))
            and self.task_id in (None, event.task_id)
            and self.turn_id in (None, event.turn_id)
            and self.session_key in (None, event.session_key)
            and self.agent_id in (None, event.agent_id)
            and self.actor in (None, event.actor)
        )


def _has(path: str | None, name: str) -> bool:
    """Return whether a trace path contains an id."""
    return path is not None and f"/{name}/" in f"/{path}/"


EVERYTHING = EventFilter()


class LogBounds(NamedTuple):
    """The first and the last seq in the log; both are 0 if the log is empty."""

    oldest_seq: int
    last_seq: int


class Pruned(NamedTuple):
    """The result of one step of pruning: how many events it removed, and the seq after which the next step continues.

    `next_after` is None if nothing is left to prune.
    """

    removed: int
    next_after: int | None


class Page(list[Event]):
    """Some events, in order.

    `next` is the seq up to which the log was read: the `after` of the next page or, if the log is read backwards, its
    `before`. It is None if the log was read to its end. A page may end early: because its events are large, or because
    the filter matches few of the events that were looked at. Such a page may be empty.
    """

    next: int | None = None


class EventLog(Protocol):
    """Port: the stored events."""

    async def read_events(
        self, after: int, which: EventFilter = EVERYTHING, limit: int = 500, most_text: int = 4_000_000
    ) -> Page:
        """Return up to `limit` matching events with seq > `after`, in order.

        If the payloads have more than `most_text` characters, fewer events are returned. A page looks at a limited
        number of events, so it may have few events or none although more follow: then `next` of the page is set.
        """

    async def read_events_back(self, before: int, which: EventFilter = EVERYTHING, limit: int = 500) -> Page:
        """Return the last `limit` matching events with seq < `before`, in order. See `read_events` for early ends."""

    async def read_log_bounds(self) -> LogBounds:
        """Return the first and the last seq of the log.

        A reader whose position is below `oldest_seq` - 1 has missed events.
        """

    async def get_cursor(self, name: str) -> int | None:
        """Return the last seq that a named reader has processed, or None."""

    async def set_cursor(self, name: str, seq: int) -> None:
        """Store the last seq that a named reader has processed."""

    async def prune_events(self, before: int, keep: int, after: int = 0) -> Pruned:
        """Remove events older than `before`, and the oldest events if there are more than `keep`.

        This stops after a few milliseconds, so that it blocks nobody. Only events with seq > `after` are removed: pass
        0, then `next_after` of the step before. Events of open tasks stay readable below `oldest_seq`. From
        `oldest_seq` on, the log has no holes.
        """
