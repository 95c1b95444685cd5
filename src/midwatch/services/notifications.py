"""The notification service: what was or will be sent, and the typing sign around a run. What a delivery is stands in
`midwatch.domain.channel`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.changes import Changes, Update
from midwatch.domain.channel import TYPING_SECONDS, Channel, Delivery, Route, Status
from midwatch.domain.event import DeliveryRetried, event
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.store import Store


class Notifications:
    """Service: what was or will be sent, and the typing sign around a run."""

    def __init__(self, store: Store, clock: Clock, channels: Mapping[str, Channel]) -> None:
        self._store = store
        self._clock = clock
        self._channels = channels

    def check_route(self, text: str) -> str:
        """`text` as a route to a channel that exists here, or InvalidInput."""
        route = Route.parse(text)
        if route.channel not in self._channels:
            known = ", ".join(sorted(self._channels))
            raise InvalidInput(
                f"no channel is called {route.channel!r}; known channels: {known}. "
                "Add it under [channels.NAME] in midwatch.toml.",
                field="route",
            )
        return text.strip()

    async def get(self, delivery_id: str) -> Delivery:
        """The delivery, or NotFound."""
        found = await self._store.get_delivery(delivery_id)
        if found is None:
            raise NotFound("delivery", delivery_id)
        return found

    async def retry(self, delivery_id: str, *, actor: AnyActor = None) -> Delivery:
        """Try a failed one again, as if it had never been tried."""
        found = await self.get(delivery_id)
        if found.status != "failed":
            raise Conflict(f"delivery {found.id} is {found.status}; only a failed one can be tried again.")
        now = self._clock.now()
        fields = {"status": "pending", "attempts": 0, "due_at": now, "error": None}
        payload = DeliveryRetried(delivery_id=found.id, channel=found.channel, notice=found.notice)
        update = Update("delivery", found.id, fields, {"status": "failed"})
        retried = event(payload, now, task_id=found.task_id, actor=actor_name(actor))
        await self._store.apply(Changes(updates=(update,), events=(retried,)))
        return await self.get(delivery_id)

    async def list(
        self, *, task_id: str | None = None, status: Status | None = None, limit: int = 50
    ) -> list[Delivery]:
        """Newest first."""
        return await self._store.list_deliveries(task_id=task_id, status=status, limit=limit)

    @asynccontextmanager
    async def typing(self, route: str | None) -> AsyncIterator[None]:
        """Show on the route's channel that somebody is at work, until the block ends. A failing channel is ignored."""
        parsed = Route.parse(route) if route else None
        channel = self._channels.get(parsed.channel) if parsed else None
        if channel is None or parsed is None:
            yield
            return
        async with _Harmless(channel, parsed.target):
            yield


class _Harmless:
    """A channel's typing sign whose failures and slowness the block inside never sees."""

    def __init__(self, channel: Channel, target: str | None) -> None:
        self._channel = channel
        self._target = target
        self._sign: AbstractAsyncContextManager[None] | None = None

    async def __aenter__(self) -> None:
        try:
            sign = self._channel.typing(self._target)
            async with asyncio.timeout(TYPING_SECONDS):
                await sign.__aenter__()
            self._sign = sign
        except Exception:
            self._sign = None

    async def __aexit__(self, *problem: Any) -> None:
        if self._sign is not None:
            with suppress(Exception):
                async with asyncio.timeout(TYPING_SECONDS):
                    await self._sign.__aexit__(None, None, None)
