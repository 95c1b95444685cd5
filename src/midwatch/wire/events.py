"""Events as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import AT, Example


class EventInfo(TypedDict, total=False):
    """An event as JSON. Live ones have seq 0."""

    seq: Annotated[int, Example(3)]
    id: Annotated[str, Example("e_06f2m8yq5s2f8d0c7b1a")]
    kind: Annotated[str, Example("task_started")]
    time: Annotated[str, Example(AT)]
    version: Annotated[int, Example(1)]
    task_id: Annotated[str | None, Example("t_06f2m8yq3kq5r0v9x1w2")]
    agent_id: Annotated[str, Example("demo")]
    turn_id: str
    parent_turn_id: str
    session_key: str
    attempt: Annotated[int, Example(1)]
    actor: str
    iteration: int
    trace_id: str
    span_id: str
    trace_path: str
    source: str
    payload: Annotated[dict[str, Any], Example({"agent": "demo", "owner": "i_06f2m8", "host": "desk"})]


class EventPage(TypedDict):
    """Some stored events, and the first and last seq of the log."""

    events: list[EventInfo]
    oldest_seq: int
    last_seq: int
    more: bool
