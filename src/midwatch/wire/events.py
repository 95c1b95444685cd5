"""Events as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.event import Event
from midwatch.domain.fields import Example
from midwatch.wire.shapes import shape_of


@shape_of(Event, partial=True, task_id=Annotated[str | None, Example("t_06f2m8yq3kq5r0v9x1w2")])
class EventInfo(dict[str, Any]):
    """An event as JSON. Live events have seq 0."""


class EventPage(TypedDict):
    """Some stored events, and the first and last seq of the whole log.

    If there may be `more` events, `next` is the seq up to which the log was read: the `after` of the next page or, for
    a page of the last events, its `before`. A page may have few events or none although there are more.
    """

    events: list[EventInfo]
    oldest_seq: int
    last_seq: int
    more: bool
    next: int | None
