"""The feed of one conversation: its state, and each change as an event for its readers.

An event is sent when a message, the status or the screen has changed, and for each error. A new reader first gets the
whole state. A slow reader stays connected: if several unread events have the same subject, the reader gets only the
newest of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import zip_longest

from midwatch.agents.terminal.format import BLANK
from midwatch.api.agentapi import bodies
from midwatch.domain.session import MAX_ERRORS

MAX_WAITING = 1024
MAX_TEXT = 1024 * 1024
"""If a reader has more unread events, or characters in them, all but the newest event of each subject are dropped."""
REPLACED = (bodies.MessageUpdateBody, bodies.ScreenUpdateBody)
"""Kinds of events that replace the last unread event if both have the same subject."""
LARGEST_FRAME = 120 * 1024
"""Maximum bytes of an encoded event. Clients of agentapi read at most 128 KiB of an event."""
CUT = "\n[cut; GET /messages has the whole text]"
GO_ESCAPES = {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-store, must-revalidate",
    "pragma": "no-cache",
    "expires": "0",
    "x-accel-buffering": "no",
    "x-proxy-buffering": "no",
    "connection": "keep-alive",
}


class Reader:
    """The unread events of one reader."""

    def __init__(self, kinds: tuple[type[bodies.EventBody], ...], max_waiting: int) -> None:
        self.waiting: list[bodies.EventBody] = []
        self._kinds = kinds
        self._max_waiting = max_waiting
        self._added_text = 0

    def offer(self, event: bodies.EventBody) -> None:
        """Add an event if the reader follows its kind."""
        if not isinstance(event, self._kinds):
            return
        if self.waiting and isinstance(event, REPLACED) and self.waiting[-1].subject == event.subject:
            self.waiting.pop()  # unread, so the new event replaces it
        self.waiting.append(event)
        self._added_text += len(getattr(event, event.long_field)) if event.long_field else 0
        if len(self.waiting) > self._max_waiting or self._added_text > MAX_TEXT:
            self._added_text = 0
            newest = {waiting.subject: waiting for waiting in self.waiting}
            self.waiting = [waiting for waiting in self.waiting if newest[waiting.subject] is waiting]


class Feed:
    """The state of a conversation, and its readers."""

    agent_type: str
    messages: tuple[bodies.MessageUpdateBody, ...] = ()
    status: bodies.AgentStatus = "running"
    screen: str = ""
    errors: tuple[bodies.ErrorBody, ...] = ()

    def __init__(self, agent_type: str, max_waiting: int = MAX_WAITING) -> None:
        self.agent_type = agent_type
        self._max_waiting = max_waiting
        self._readers: set[Reader] = set()
        self._changed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of readers."""
        return len(self._readers)

    # -- changes -----------------------------------------------------------------------------------------------------

    def emit_messages(self, messages: Sequence[bodies.MessageUpdateBody]) -> None:
        """Set the messages of the conversation, and send each message that is new or has changed to the readers."""
        for message, before in zip_longest(messages, self.messages[: len(messages)]):
            if message is not before and message != before:  # most are the same object, which compares fast
                self._send(message)
        self.messages = tuple(messages)

    def emit_status(self, status: bodies.AgentStatus) -> None:
        """Set the status of the agent. If it has changed, send it to the readers."""
        if status != self.status:
            self.status = status
            self._send(self._status_change())

    def emit_screen(self, screen: str) -> None:
        """Set the screen of the terminal. If it has changed, send it to the readers."""
        if screen != self.screen:
            self.screen = screen
            self._send(self._screen_update())

    def emit_error(self, message: str, level: bodies.ErrorLevel, time: int) -> None:
        """Send an error to the readers, and keep the last errors for later readers."""
        error = bodies.ErrorBody(message=message, level=level, time=time)
        self.errors = (*self.errors, error)[-MAX_ERRORS:]
        self._send(error)

    def _send(self, event: bodies.EventBody) -> None:
        for reader in self._readers:
            reader.offer(event)
        self._wake_readers()

    def _wake_readers(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _status_change(self) -> bodies.StatusChangeBody:
        return bodies.StatusChangeBody(status=self.status, agent_type=self.agent_type)

    def _screen_update(self) -> bodies.ScreenUpdateBody:
        return bodies.ScreenUpdateBody(screen=self.screen.rstrip(BLANK))

    # -- readers -----------------------------------------------------------------------------------------------------

    async def follow(self, *kinds: type[bodies.EventBody]) -> AsyncGenerator[list[bodies.EventBody], None]:
        """Yield the current state as events of these kinds, then every change. End when the feed is closed."""
        reader = Reader(kinds, self._max_waiting)
        self._readers.add(reader)
        try:
            yield [event for event in self.state() if isinstance(event, kinds)]
            while reader.waiting or not self._closed:
                events, reader.waiting = reader.waiting, []
                if events:
                    yield events
                else:
                    await self._changed.wait()
        finally:
            self._readers.discard(reader)

    def state(self) -> list[bodies.EventBody]:
        """Return the state as events: messages in order, status, screen, errors."""
        return [*self.messages, self._status_change(), self._screen_update(), *self.errors]

    def close(self) -> None:
        """Close the feed. Each reader still gets its unread events, then `follow` ends."""
        self._closed = True
        self._wake_readers()


def encode_event(event: bodies.EventBody) -> bytes:
    """Return an event as a frame of a stream. Cut the longest text if the event is too long for clients."""
    data = _to_json(event)
    size = LARGEST_FRAME
    while len(data) > LARGEST_FRAME and event.long_field is not None:
        text = getattr(event, event.long_field)[:size] + CUT
        data = _to_json(event.model_copy(update={event.long_field: text}))
        size = size * 2 // 3
    return b"event: %s\ndata: %s\n\n" % (event.event.encode(), data)


def _to_json(event: bodies.EventBody) -> bytes:
    text = event.model_dump_json()
    for char, escape in GO_ESCAPES.items():
        text = text.replace(char, escape)
    return text.encode()
