"""The notification service: reads and retries deliveries, checks routes, and shows the typing indicator.

The record of a delivery is in `midwatch.domain.channel`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.base.foreign import ContainExit
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import TYPING_SECONDS, Channel, Delivery, Route, Status
from midwatch.domain.event import DeliveryRetried, event
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.store import Store
from midwatch.services.authorization import authorize
from midwatch.services.records import require


class Notifications:
    """Service: the deliveries of notices, and the typing indicator while a task runs."""

    def __init__(self, store: Store, clock: Clock, channels: Mapping[str, Channel]) -> None:
        self._store = store
        self._clock = clock
        self._channels = channels

    def check_route(self, text: str) -> str:
        """Return the route in `text`. Raise InvalidInput if the text is no route or its channel does not exist."""
        route = Route.parse(text)
        if route.channel not in self._channels:
            names = ", ".join(sorted(self._channels))
            raise InvalidInput(
                f"there is no channel {route.channel!r}; use one of: {names}; "
                "or add a table [channels.NAME] to midwatch.toml.",
                field="route",
            )
        return text.strip()

    async def get(self, delivery_id: str, *, actor: AnyActor = None) -> Delivery:
        """Return the delivery, or raise NotFound."""
        authorize(actor, "oversee")
        return require(await self._store.get_delivery(delivery_id), "delivery", delivery_id)

    async def retry(self, delivery_id: str, *, actor: AnyActor = None) -> Delivery:
        """Make a failed delivery pending again, with its number of attempts set to 0."""
        authorize(actor, "operate")
        delivery = await self.get(delivery_id)
        if delivery.status != "failed":
            raise Conflict(f"delivery {delivery.id} is {delivery.status}; only a failed delivery can be retried.")
        now = self._clock.now()
        fields = {"status": "pending", "attempts": 0, "due_at": now, "error": None}
        payload = DeliveryRetried(delivery_id=delivery.id, channel=delivery.channel, notice=delivery.notice)
        update = Update("delivery", delivery.id, fields, {"status": "failed"})
        retried = event(payload, now, task_id=delivery.task_id, actor=actor_name(actor))
        await self._store.apply(Changes(updates=(update,), events=(retried,)))
        return await self.get(delivery_id)

    async def list(
        self, *, task_id: str | None = None, status: Status | None = None, limit: int = 50, actor: AnyActor = None
    ) -> list[Delivery]:
        """Return deliveries, newest first: all of them, or only those of a task or with a status."""
        authorize(actor, "oversee")
        return await self._store.list_deliveries(task_id=task_id, status=status, limit=limit)

    @asynccontextmanager
    async def typing(self, route: str | None) -> AsyncIterator[None]:
        """Show the typing indicator on the channel of a route during the block. Errors of the channel are ignored."""
        parsed = Route.parse(route) if route else None
        channel = self._channels.get(parsed.channel) if parsed else None
        sign: AbstractAsyncContextManager[None] | None = None
        if channel is not None and parsed is not None:
            with suppress(Exception), ContainExit("the channel"):
                entering = channel.typing(parsed.target)
                async with asyncio.timeout(TYPING_SECONDS):
                    await entering.__aenter__()
                sign = entering
        try:
            yield
        finally:
            if sign is not None:
                with suppress(Exception), ContainExit("the channel"):
                    async with asyncio.timeout(TYPING_SECONDS):
                        await sign.__aexit__(None, None, None)
