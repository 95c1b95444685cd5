"""Events as the HTTP interface shows them."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class EventInfo(TypedDict, total=False):
    """An event as JSON. Live ones have seq 0."""

    seq: int
    id: str
    kind: str
    time: str
    version: int
    task_id: str | None
    agent_id: str
    turn_id: str
    parent_turn_id: str
    session_key: str
    attempt: int
    actor: str
    iteration: int
    trace_id: str
    span_id: str
    trace_path: str
    source: str
    payload: dict[str, Any]


class EventPage(TypedDict):
    """Some stored events, and the first and last seq of the log."""

    events: list[EventInfo]
    oldest_seq: int
    last_seq: int
    more: bool
