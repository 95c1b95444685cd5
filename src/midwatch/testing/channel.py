"""A channel that records its deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from midwatch.base.errors import DeliveryError
from midwatch.domain.channel import Delivery


class RecordingChannel:
    """A channel that records its deliveries, and can fail or hang on request."""

    def __init__(self, name: str = "recording", *, fail: int = 0, permanent: bool = False, hang: bool = False) -> None:
        self.name = name
        self.fail = fail
        """How many of the next deliveries fail."""
        self.permanent = permanent
        self.hang = hang
        """While this is true, calls of `deliver` do not return."""
        self.tried: list[Delivery] = []
        self.delivered: list[Delivery] = []
        self.typing_now = 0
        self.typed: list[tuple[str, str | None]] = []
        """The calls of `typing`, in order: (start or stop, target)."""
        self.closed = False
        self._news = asyncio.Condition()

    async def deliver(self, delivery: Delivery) -> None:
        """Record the delivery; or fail if `fail` is set, or hang if `hang` is set."""
        self.tried.append(delivery)
        await self._notify()
        if self.hang:
            await asyncio.Event().wait()
        if self.fail > 0:
            self.fail -= 1
            raise DeliveryError(f"channel {self.name} fails because the test set `fail`", permanent=self.permanent)
        self.delivered.append(delivery)
        await self._notify()

    def typing(self, target: str | None) -> AbstractAsyncContextManager[None]:
        """Record the start and the end of the typing indicator."""
        return self._typing(target)

    def listen(self) -> AsyncIterator[Mapping[str, Any]] | None:
        """Return None, because this channel receives nothing."""
        return None

    async def close(self) -> None:
        """Record that the channel was closed."""
        self.closed = True

    async def until(self, condition: Callable[[RecordingChannel], bool]) -> None:
        """Wait until `condition` returns true for this channel."""
        async with self._news:
            await self._news.wait_for(lambda: condition(self))

    @asynccontextmanager
    async def _typing(self, target: str | None) -> AsyncIterator[None]:
        self.typing_now += 1
        self.typed.append(("start", target))
        try:
            yield
        finally:
            self.typing_now -= 1
            self.typed.append(("stop", target))

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()
