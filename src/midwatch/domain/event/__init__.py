"""Events: the only thing that leaves midwatch.

Every change of state and every step of an agent is an event, written in the transaction of the change it tells of.
An `Event` is an envelope around one payload; each kind of payload is one frozen class below. Live kinds (deltas) are
shown to whoever watches and are never stored.
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
"""Of the envelope and the payloads; raised when a field changes its meaning."""


class Event(NamedTuple):
    """One fact. `seq` is 0 until it is stored; stored ones have consecutive numbers without holes."""

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
        """Return it as JSON shows it: empty meta fields left out, the time as ISO text."""
        known = {name: value for name, value in self._asdict().items() if value is not None}
        return {**known, "task_id": self.task_id, "time": iso(self.time)}


def event(payload: Payload, now: int, **meta: Any) -> Event:
    """Wrap a payload in its envelope."""
    return Event(payload.kind, now, payload.data(), new_id("e", now), **meta)


def call_of(call: Event) -> str:
    """Return the name that a start and its end share: the id of the call or, without one, the tool's name."""
    payload = call.payload
    if call.kind.startswith("llm"):
        return f"llm {payload.get('request_id')}"
    return f"tool {payload.get('tool_call_id') or payload.get('tool')}"


def end_call(start: Event, why: str, duration: float | None = None) -> Payload:
    """Return the end of a model or tool call that was cut off."""
    payload = start.payload
    if start.kind == "llm_request":
        return LlmResponse(  # noqa: F405
            model=payload.get("model"), finish_reason="cut_off", latency=duration, request_id=payload.get("request_id")
        )
    return ToolExecEnd(  # noqa: F405
        tool=payload["tool"], tool_call_id=payload.get("tool_call_id"), duration=duration, is_error=True, result=why
    )


def kind_text(name: str) -> str:
    """Return the name of a kind for people; one that only a newer version knows is marked."""
    return name if name in KINDS else f"event_kind({name})"


class Wanted(NamedTuple):
    """Kinds by name, and the beginnings of others."""

    names: frozenset[str]
    beginnings: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Return whether this kind is among them."""
        return name in self.names or name.startswith(self.beginnings)


@lru_cache(256)
def parse_kinds(kinds: tuple[str, ...]) -> Wanted:
    """Parse the kinds of a filter: `tool_*` means every kind that begins with `tool_`."""
    names = frozenset(name for name in kinds if not name.endswith("*"))
    return Wanted(names, tuple(name[:-1] for name in kinds if name.endswith("*")))


def kinds_of(name: str) -> list[str]:
    """Return the known kinds that a filter's `name` means."""
    return [known for known in KINDS if parse_kinds((name,)).has(known)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events to read; empty means all. A kind that ends with `*` means all that begin so."""

    kinds: tuple[str, ...] = ()
    task_id: str | None = None
    turn_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    actor: str | None = None

    @property
    def of_task(self) -> str | None:
        """Return the one task it asks for, which the id of a turn begins with."""
        return self.task_id or (self.turn_id.partition(".")[0] if self.turn_id else None)

    def matches(self, found: Event) -> bool:
        """Return whether `found` is one of them."""
        return (
            (not self.kinds or parse_kinds(self.kinds).has(found.kind))
            and self.task_id in (None, found.task_id)
            and self.turn_id in (None, found.turn_id)
            and self.session_key in (None, found.session_key)
            and self.agent_id in (None, found.agent_id)
            and self.actor in (None, found.actor)
        )


EVERYTHING = EventFilter()


class LogBounds(NamedTuple):
    """What the log holds: the first and the last stored seq (0 and 0 when empty)."""

    oldest_seq: int
    last_seq: int


class Page(list[Event]):
    """Some events, in order. `cut` says that it ends early because they are large, not because there are no more."""

    cut = False


class EventLog(Protocol):
    """Port: the stored events."""

    async def read_events(self, after: int, which: EventFilter = EVERYTHING, limit: int = 500) -> Page:
        """Return up to `limit` matching events with seq > `after`, in order; fewer of large ones, but one at least."""

    async def read_events_back(self, before: int, which: EventFilter = EVERYTHING, limit: int = 500) -> list[Event]:
        """Return the last `limit` matching events with seq < `before`, in order."""

    async def read_log_bounds(self) -> LogBounds:
        """Return the seqs that the log still holds. A follower below `oldest_seq` - 1 has missed events."""

    async def get_cursor(self, name: str) -> int | None:
        """Return the seq up to which a named reader has followed the log, or None."""

    async def set_cursor(self, name: str, seq: int) -> None:
        """Store the seq up to which a named reader has followed the log."""

    async def prune_events(self, before: int, keep: int) -> int:
        """Remove events older than `before`, and the oldest beyond `keep`, and return how many. Those of open tasks
        stay readable below `oldest_seq`; from there on the log has no holes."""
