"""Channels: ways to send notices.

A delivery is one notice to one channel; the notice is stored until it is sent. A route is written as `channel` or
`channel:target`, for example `console`, `phone` or `webhook:https://example.org/hook`. Several routes are stored as one
text, a JSON list.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from midwatch.base.clock import iso
from midwatch.base.errors import InvalidInput
from midwatch.domain.fields import Example, Hidden, to_json

Status = Literal["pending", "sent", "failed"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "pending": frozenset({"sent", "failed"}),
    "sent": frozenset(),
    "failed": frozenset({"pending"}),  # a person asks for another try
}

MAX_ATTEMPTS = 8
BACKOFF_SECONDS = (1, 5, 30, 120, 600, 1800, 3600)
"""The pauses after the first failed try, the second failed try, and so on."""

PROMPT_SHOWN, TEXT_SHOWN = 50, 500
TYPING_SECONDS = 2.0


class Route(NamedTuple):
    """A channel, and a target on the channel if it needs one."""

    channel: str
    target: str | None = None

    @classmethod
    def parse(cls, text: str) -> Route:
        """Read a route from a text such as `channel` or `channel:target`."""
        name, _, target = text.strip().partition(":")
        if not name:
            raise InvalidInput("a route must be `channel` or `channel:target`, such as console.", field="route")
        return cls(name, target or None)


def split_routes(text: str) -> list[str]:
    """Return the routes that a stored text names. Only a text that begins with a bracket can name several."""
    if not text.startswith("["):
        return [text]
    try:
        routes = json.loads(text)
    except ValueError:
        return [text]
    return routes if isinstance(routes, list) and all(isinstance(route, str) for route in routes) else [text]


def join_routes(routes: Sequence[str]) -> str:
    """Return several routes as the text that is stored. One route is stored as it is."""
    return routes[0] if len(routes) == 1 else json.dumps(list(routes), ensure_ascii=False)


def name_again(route: str) -> str | list[str]:
    """Return a stored text of routes as a request that names the same routes, also if a target contains a blank."""
    routes = split_routes(route)
    return route if len(routes) == 1 and not any(map(str.isspace, route)) else routes


def read_routes(text: str) -> list[Route]:
    """Return the routes in a stored text."""
    return [Route.parse(route) for route in split_routes(text)]


def hide_target(route: str | None) -> str | None:
    """Return the channels of a route, without the targets, which may contain secrets."""
    if not route:
        return None
    if not route.startswith("["):
        return route.partition(":")[0]
    return " ".join(dict.fromkeys(each.partition(":")[0] for each in split_routes(route)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One notice to one channel. The same notice about a task is never stored twice for a route.

    `policy` is the policy by which it is sent. Notices that are sent as one digest have the same `digest_id`, the id of
    the first of them.
    """

    id: Annotated[str, Example("d_06f2m8yq7v3b5n8x")]
    task_id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    channel: Annotated[str, Example("webhook")]
    notice: Annotated[str, Example("done")]
    text: Annotated[str, Example("Task t_06f2m8yq3kq5r0v9x1w2 is done: Hello.")]
    target: Hidden[str | None] = None
    policy: Annotated[str | None, Example("result")] = None
    digest_id: str | None = None
    status: Status = "pending"
    attempts: int = 0
    due_at: int = 0
    created_at: Hidden[int] = 0
    sent_at: int | None = None
    error: str | None = None

    def snapshot(self) -> dict[str, Any]:
        """Return the delivery as JSON shows it. The target is left out, because it may contain a secret."""
        return {**to_json(self), "due_at": iso(self.due_at) if self.status == "pending" else None}


def backoff(attempts: int) -> float:
    """Return the seconds to wait after the `attempts`-th failed try."""
    return float(BACKOFF_SECONDS[min(attempts, len(BACKOFF_SECONDS)) - 1])


class Channel(Protocol):
    """Port: a way to reach people or programs."""

    name: str

    async def deliver(self, delivery: Delivery) -> None:
        """Send a delivery, or raise DeliveryError.

        This method may be called again with the same delivery after a crash or a failure. Send the id of the delivery
        along, so that the receiver can recognise a repeated notice.
        """

    def typing(self, target: str | None) -> AbstractAsyncContextManager[None]:
        """Show that an answer is being written, as long as the context is open. This method never raises an error."""

    def listen(self) -> AsyncIterator[Mapping[str, Any]] | None:
        """Return the messages that arrive on this channel, or None if the channel only sends."""

    async def close(self) -> None:
        """Close the connections of the channel."""


class DeliveryStore(Protocol):
    """Port: deliveries.

    They are created with `Changes`, in the same transaction as the step that they report.
    """

    async def list_due_deliveries(self, now: int, limit: int = 50) -> list[Delivery]:
        """Return pending deliveries that are due, oldest first."""

    async def find_next_delivery_at(self) -> int | None:
        """Return when the next pending delivery is due, or None."""

    async def get_delivery(self, delivery_id: str) -> Delivery | None:
        """Return the delivery, or None."""

    async def seal_digest(self, delivery: Delivery, now: int) -> list[Delivery]:
        """Return the unsent notices of the digest that a delivery is part of.

        Unless it is part of a digest already, it becomes one with all other notices that are due for the same channel
        and target. Later notices cannot join this digest, so a message that is sent twice is the same both times.
        """

    async def list_digest(self, digest_id: str) -> list[Delivery]:
        """Return the notices of a digest, oldest first, also those that were sent."""

    async def find_told_run(
        self, automation_id: str, channel: str, target: str | None
    ) -> tuple[str, str | None] | None:
        """Return the status and the result of the last run whose end was told on a route, or None."""

    async def list_deliveries(
        self, *, task_id: str | None = None, status: Status | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Return deliveries, newest first."""
