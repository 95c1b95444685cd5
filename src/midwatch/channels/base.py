"""What the kinds of channels share: reading options, the parts of the port a sender does not need, and discretion."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from midwatch.base.durations import seconds
from midwatch.base.errors import BadConfig, InvalidInput


class SendOnly:
    """A channel on which nothing arrives and nobody sees who is typing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def typing(self, target: str | None) -> AbstractAsyncContextManager[None]:
        """Nothing to show."""
        return nullcontext()

    def listen(self) -> AsyncIterator[Mapping[str, Any]] | None:
        """It only sends."""
        return None

    async def close(self) -> None:
        """Nothing to let go of."""


class Options:
    """The options of one channel. Errors name the setting, never its value: it may be a secret."""

    def __init__(self, channel: str, values: Mapping[str, Any], known: Iterable[str]) -> None:
        self._channel = channel
        self._values = values
        for key in values:
            if key not in known:
                raise self.wrong(str(key), f"there is no such option; known options: {', '.join(known) or 'none'}")

    def wrong(self, key: str, why: str) -> BadConfig:
        """The error to raise about one option."""
        return BadConfig(f"channels.{self._channel}.{key}: {why}.")

    def text(self, key: str) -> str | None:
        """A text that is not empty, or None."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "write a text that is not empty")
        return value.strip()

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """One of `choices`; the first by default."""
        value = self._values.get(key, choices[0])
        if value not in choices:
            raise self.wrong(key, f"write one of {', '.join(choices)}")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts."""
        value = self._values.get(key, ())
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item.strip() for item in value):
            raise self.wrong(key, "write a list of texts")
        return tuple(item.strip() for item in value)

    def table(self, key: str) -> dict[str, str]:
        """A table of texts."""
        value = self._values.get(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for pair in value.items() for item in pair):
            raise self.wrong(key, "write a table of texts")
        return dict(value)

    def seconds(self, key: str, default: float) -> float:
        """A duration above 0."""
        value = self._values.get(key, default)
        try:
            found = seconds(value) if isinstance(value, str | int | float) else 0.0
        except InvalidInput:
            found = 0.0
        if isinstance(value, bool) or not 0 < found < float("inf"):
            raise self.wrong(key, "write a duration above 0, such as 10s")
        return found


_unlogged: ContextVar[bool] = ContextVar("midwatch_unlogged", default=False)


class _Discreet(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not _unlogged.get()


_DISCREET = _Discreet()


@contextmanager
def unlogged(*loggers: str) -> Iterator[None]:
    """Keep a library from logging what it does for us: it writes addresses, and they may hold secrets."""
    for name in loggers:
        logging.getLogger(name).addFilter(_DISCREET)
    token = _unlogged.set(True)
    try:
        yield
    finally:
        _unlogged.reset(token)
