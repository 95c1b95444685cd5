"""Channels: ways to send notices.

A delivery is one notice to one channel; the notice is stored until it is sent. A route is written as `channel` or
`channel:target`, for example `console`, `phone` or `webhook:https://example.org/hook`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from midwatch.base.clock import iso
from midwatch.base.errors import InvalidInput
from midwatch.base.ids import new_id
from midwatch.base.text import cut
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


def hide_target(route: str | None) -> str | None:
    """Return the channel of a route, without the target, which may contain a secret."""
    return route.partition(":")[0] if route else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One notice to one channel. The same notice about a task is never stored twice for a channel."""

    id: Annotated[str, Example("d_06f2m8yq7v3b5n8x")]
    task_id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    channel: Annotated[str, Example("webhook")]
    notice: Annotated[str, Example("done")]
    text: Annotated[str, Example("Task t_06f2m8yq3kq5r0v9x1w2 is done: Hello.")]
    target: Hidden[str | None] = None
    status: Status = "pending"
    attempts: int = 0
    due_at: int = 0
    created_at: Hidden[int] = 0
    sent_at: int | None = None
    error: str | None = None

    def snapshot(self) -> dict[str, Any]:
        """Return the delivery as JSON shows it. The target is left out, because it may contain a secret."""
        return {**to_json(self), "due_at": iso(self.due_at) if self.status == "pending" else None}


def notify(route: str | None, about: str, notice: str, text: str, now: int) -> tuple[Delivery, ...]:
    """Return the delivery of a notice about a task, a goal or an automation.

    Without a route, return no delivery.
    """
    if not route:
        return ()
    channel, target = Route.parse(route)
    delivery = Delivery(
        id=new_id("d", now), task_id=about, channel=channel, target=target, notice=notice, text=text, due_at=now,
        created_at=now,
    )  # fmt: skip
    return (delivery,)


def start_text(task_id: str, prompt: str, agent: str) -> str:
    """Return the text of the notice that work began."""
    return f"Started: {cut(prompt, PROMPT_SHOWN)}\n{task_id} with {agent}"


def end_text(notice: str, task_id: str, prompt: str, text: str, again: str | None = None) -> str:
    """Return the text of the notice that work ended, with the command for the next step."""
    head = f"{notice.replace('_', ' ').capitalize()}: {cut(prompt, PROMPT_SHOWN)}"
    body = f"\n{cut(text, TEXT_SHOWN)}" if text else ""
    again = again or f"midwatch retry {task_id}"
    last_line = f"Full result: midwatch result {task_id}" if notice == "done" else f"Try again: {again}"
    return f"{head}{body}\n{last_line}"


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

    async def list_deliveries(
        self, *, task_id: str | None = None, status: Status | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Return deliveries, newest first."""
