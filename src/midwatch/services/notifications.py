"""The notification service: reads and retries deliveries, checks routes, plans notices, and shows the typing indicator.

The record of a delivery is in `midwatch.domain.channel`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.base.foreign import ContainExit
from midwatch.base.schedule import host_zone
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import (
    TYPING_SECONDS,
    Channel,
    Delivery,
    Route,
    Status,
    join_routes,
    read_routes,
    split_routes,
)
from midwatch.domain.event import DeliveryRetried, event
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.notice import DIGEST_AT, complete_policy
from midwatch.domain.store import Store
from midwatch.services.authorization import authorize
from midwatch.services.records import require

MOST_ROUTES = 10


class Notifications:
    """Service: the deliveries of notices, and the typing indicator while a task runs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        channels: Mapping[str, Channel],
        policies: Mapping[str, str] | None = None,
        digest_at: str = DIGEST_AT,
    ) -> None:
        """Build the service. `policies` are those of channels; daily digests are sent at `digest_at`."""
        self._store = store
        self._clock = clock
        self._channels = channels
        self._policies = policies or {}
        self._digest_at = digest_at

    def check_route(self, wanted: str | Sequence[str]) -> str:
        """Return the text to store for one or several routes.

        Several routes are a list, or a text in which they are separated by blanks. Raise InvalidInput if one of them is
        no route or its channel does not exist.
        """
        routes = [route.strip() for route in ([*self._split(wanted)] if isinstance(wanted, str) else wanted)]
        if not routes or len(routes) > MOST_ROUTES:
            raise InvalidInput(f"name from 1 to {MOST_ROUTES} routes.", field="route")
        for route in routes:
            channel = Route.parse(route).channel
            if channel not in self._channels:
                names = ", ".join(sorted(self._channels))
                raise InvalidInput(
                    f"there is no channel {channel!r}; use one of: {names}; "
                    "or add a table [channels.NAME] to midwatch.toml.",
                    field="route",
                )
        return join_routes(list(dict.fromkeys(routes)))

    def _split(self, text: str) -> list[str]:
        """Return the routes in a text. A blank separates two routes only if a channel's name follows.

        Any other blank belongs to the target: a target may contain blanks.
        """
        if text.startswith("["):
            return split_routes(text)
        routes: list[str] = []
        for piece in re.split(r"(?<=\S)(?=\s)", text.strip()):
            name = piece.strip().partition(":")[0]
            if routes and ":" in routes[-1] and name not in self._channels:
                routes[-1] += piece
            else:
                routes.append(piece.strip())
        return routes

    def plan(self, route: str | None, policy: str | None) -> str | None:
        """Return the plan of the notices that go to a route.

        A `policy` that the work itself names counts for all channels; otherwise each channel's own counts.
        """
        if not route:
            return None
        if policy is not None:
            return complete_policy(policy, host_zone(), self._digest_at)
        own = {}
        for channel in dict.fromkeys(each.channel for each in read_routes(route)):
            if channel in self._policies:
                own[channel] = complete_policy(self._policies[channel], host_zone(), self._digest_at)
        return " ".join(f"{channel}={chosen}" for channel, chosen in own.items()) or None

    async def get(self, delivery_id: str, *, actor: AnyActor = None) -> Delivery:
        """Return the delivery, or raise NotFound."""
        authorize(actor, "oversee")
        return require(await self._store.get_delivery(delivery_id), "delivery", delivery_id)

    async def retry(self, delivery_id: str, *, actor: AnyActor = None) -> Delivery:
        """Make a failed delivery pending again, with its number of attempts set to 0.

        If it is part of a digest, the whole digest is sent again.
        """
        authorize(actor, "operate")
        delivery = await self.get(delivery_id)
        if delivery.status != "failed":
            raise Conflict(f"delivery {delivery.id} is {delivery.status}; only a failed delivery can be retried.")
        now = self._clock.now()
        digest = await self._store.list_digest(delivery.digest_id) if delivery.digest_id else [delivery]
        changes = Changes()
        for part in digest:
            if part.status == "failed":
                changes = changes.plus(_retry(part, now, actor_name(actor)))
        await self._store.apply(changes)
        return await self.get(delivery_id)

    async def list(
        self, *, task_id: str | None = None, status: Status | None = None, limit: int = 50, actor: AnyActor = None
    ) -> list[Delivery]:
        """Return deliveries, newest first: all of them, or only those of a task or with a status."""
        authorize(actor, "oversee")
        return await self._store.list_deliveries(task_id=task_id, status=status, limit=limit)

    @asynccontextmanager
    async def typing(self, route: str | None) -> AsyncIterator[None]:
        """Show the typing indicator on the channels of a route during the block. Errors of a channel are ignored."""
        signs: list[AbstractAsyncContextManager[None]] = []
        for channel_name, target in read_routes(route) if route else ():
            channel = self._channels.get(channel_name)
            if channel is not None:
                with suppress(Exception), ContainExit("the channel"):
                    entering = channel.typing(target)
                    async with asyncio.timeout(TYPING_SECONDS):
                        await entering.__aenter__()
                    signs.append(entering)
        try:
            yield
        finally:
            for sign in signs:
                with suppress(Exception), ContainExit("the channel"):
                    async with asyncio.timeout(TYPING_SECONDS):
                        await sign.__aexit__(None, None, None)


def _retry(delivery: Delivery, now: int, actor: str | None) -> Changes:
    fields = {"status": "pending", "attempts": 0, "due_at": now, "error": None}
    payload = DeliveryRetried(delivery_id=delivery.id, channel=delivery.channel, notice=delivery.notice)
    update = Update("delivery", delivery.id, fields, {"status": "failed"})
    return Changes(updates=(update,), events=(event(payload, now, task_id=delivery.task_id, actor=actor),))
