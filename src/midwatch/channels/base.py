"""Base class of channels that only send, the type of a text option, and a way to keep secrets out of logs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Annotated, Any

from pydantic import StringConstraints

from midwatch.base.errors import DeliveryError

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class SendOnly:
    """Base class of channels that receive nothing and show no typing indicator."""

    def __init__(self, name: str) -> None:
        self.name = name

    def typing(self, target: str | None) -> AbstractAsyncContextManager[None]:
        """Show nothing."""
        return nullcontext()

    def listen(self) -> AsyncIterator[Mapping[str, Any]] | None:
        """Return None, because this channel receives nothing."""
        return None

    async def close(self) -> None:
        """Do nothing."""

    def _failure(self, why: str, *, permanent: bool = False) -> DeliveryError:
        """Return the error for a notice that was not sent."""
        return DeliveryError(f"channel {self.name}: {why}.", permanent=permanent)


_unlogged: ContextVar[bool] = ContextVar("midwatch_unlogged", default=False)


class _Silent(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _unlogged.get()


_SILENT = _Silent()


@contextmanager
def silence_loggers(*loggers: str) -> Iterator[None]:
    """Drop the messages of these loggers inside the block. They contain addresses, which may contain secrets."""
    for name in loggers:
        logging.getLogger(name).addFilter(_SILENT)
    token = _unlogged.set(True)
    try:
        yield
    finally:
        _unlogged.reset(token)
