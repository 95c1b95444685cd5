"""Relay: the port that carries live events between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from midwatch.domain.event import Event

EVERYBODY = "*"


class Relay(Protocol):
    """Port: carries messages between processes.

    A message arrives complete and in order, or not at all; lost messages are reported. Listeners are called on the
    event loop.
    """

    def open(self) -> None:
        """Begin to listen in the background; lost connections are opened again. A second call does nothing."""

    def on_message(self, topic: str, listener: Callable[[str, Any], None]) -> None:
        """Call `listener` with the sender and the data of each message with this topic."""

    def on_connect(self, listener: Callable[[], None]) -> None:
        """Call `listener` each time this process connects; messages from before may have been lost."""

    def on_loss(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the id of a sender when some messages of this sender were lost."""

    def send(self, to: str, topic: str, data: Any) -> bool:
        """Send `data` to the process with the id `to`, or to all other processes (EVERYBODY), without waiting.

        Return False if the message is certainly lost, because this process is not connected or too many messages wait.
        """

    async def flush(self) -> None:
        """Wait until all messages have left this process or are lost."""

    async def close(self) -> None:
        """Send waiting messages, if that is possible, and close the connection."""


class LiveReaders(Protocol):
    """Port: the readers of events in this process, in the form that the exchange needs."""

    @property
    def shown_seq(self) -> int:
        """Return the seq of the last stored event that this process has shown."""

    @property
    def known_seq(self) -> int:
        """Return the seq of the last stored event that this process knows; it may not be shown yet."""

    def seek(self, seq: int) -> None:
        """Read the stored events up to `seq` from the log, if they were not shown yet."""

    def show_from(self, source: str, live: Event) -> None:
        """Show a live event that the process `source` has sent."""

    def report_loss(self, source: str, dropped: int) -> None:
        """Report that live events of the process `source` are missing, to all readers of these events."""
