"""Relay: the port that carries live events between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from midwatch.domain.event import Event

EVERYBODY = "*"


class Relay(Protocol):
    """Port: carries messages between processes.

    A message arrives complete and in order, or not at all; a loss is reported. Listeners are called on the event loop.
    """

    def open(self) -> None:
        """Begin to listen in the background; lost connections are opened again. A second call does nothing."""

    def on_message(self, topic: str, listener: Callable[[str, Any], None]) -> None:
        """Call `listener` with the sender and the data of each message with this topic."""

    def on_connect(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time this process is connected; earlier messages may have been lost."""

    def on_loss(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the sender when some of its messages were lost."""

    def send(self, to: str, topic: str, data: Any) -> bool:
        """Send plain data to the process with this id, or to EVERYBODY else, without waiting.

        Return False if it is certainly lost, because this process is not connected or too many messages wait.
        """

    async def flush(self) -> None:
        """Return once all sent messages have left this process, or are lost."""

    async def close(self) -> None:
        """Send waiting messages, if that is possible, and close the connection."""


class LiveReaders(Protocol):
    """Port: the readers of events in this process, as the exchange needs them."""

    @property
    def shown_seq(self) -> int:
        """Return the last stored event that was shown here."""

    @property
    def known_seq(self) -> int:
        """Return the last stored event that this process knows."""

    def seek(self, seq: int) -> None:
        """Look for the stored events up to `seq`, if they were not shown yet."""

    def show_from(self, source: str, live: Event) -> None:
        """Show a live event of another process."""

    def report_loss(self, source: str, dropped: int) -> None:
        """Report to the readers of a process that some of its live events are missing."""
