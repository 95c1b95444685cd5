"""The feed of one conversation: what it is now, and each change of it, for everybody who watches.

A message is told again when it has changed, a status and a screen when they differ from the last. Whoever begins to
watch is first told the whole state. A reader that falls behind is not cut off: of what it has not read yet it gets the
newest version.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from midwatch.agents.terminal.format import BLANK
from midwatch.base.clock import SECOND, iso
from midwatch.domain.session import MAX_ERRORS

WAITING = 1024
"""Events a reader may leave unread before older versions of the same thing are dropped."""

Role = Literal["user", "agent"]
Status = Literal["running", "stable"]
Level = Literal["warning", "error"]


class Said(NamedTuple):
    """One message. Its `id` is its place in the conversation, from 0."""

    id: int
    message: str
    role: Role
    time: int


class Trouble(NamedTuple):
    """Something that went wrong."""

    message: str
    level: Level
    time: int


class Told(NamedTuple):
    """One event: its name, what it is about, and its body with its keys in order."""

    name: Literal["message_update", "status_change", "screen", "agent_error"]
    about: str
    body: dict[str, Any]


class Reader:
    """Somebody who watches: what it has not taken yet."""

    def __init__(self, names: frozenset[str], most: int) -> None:
        self._names = names
        self._most = most
        self._waiting: deque[Told] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def offer(self, told: Told) -> None:
        """Add an event, if it is one for this reader."""
        if told.name not in self._names or self._closed:
            return
        if self._waiting and self._waiting[-1].about == told.about and told.name in ("message_update", "screen"):
            self._waiting.pop()  # nobody has read it, and it is told anew
        self._waiting.append(told)
        if len(self._waiting) > self._most:
            newest = {one.about: one for one in self._waiting}
            self._waiting = deque(one for one in self._waiting if newest[one.about] is one)
        self._news.set()

    def close(self) -> None:
        """Nothing more will come; what waits can still be taken."""
        self._closed = True
        self._news.set()

    async def take(self) -> list[Told]:
        """What has come since; waits for something. Empty when nothing more will come."""
        await self._news.wait()
        taken = list(self._waiting)
        self._waiting.clear()
        if not self._closed:
            self._news.clear()
        return taken


class Feed:
    """The state of a conversation, and who watches it."""

    agent_type: str
    messages: tuple[Said, ...] = ()
    status: Status = "running"
    screen: str = ""
    errors: tuple[Trouble, ...] = ()

    def __init__(self, agent_type: str, now: Callable[[], int], most_waiting: int = WAITING) -> None:
        self.agent_type = agent_type
        self._now = now
        self._most_waiting = most_waiting
        self._readers: set[Reader] = set()
        self._closed = False

    def __len__(self) -> int:
        """How many watch."""
        return len(self._readers)

    # -- what happens ------------------------------------------------------------------------------------------------

    def emit_messages(self, messages: Sequence[Said]) -> None:
        """The conversation as it is now: each message that is new or not as it was is told."""
        for place, said in enumerate(messages):
            if place >= len(self.messages) or self.messages[place] != said:
                self._tell(message_update(said))
        self.messages = tuple(messages)

    def emit_status(self, status: Status) -> None:
        """What the agent does now; told when it is something else."""
        if status != self.status:
            self.status = status
            self._tell(self._status_change())

    def emit_screen(self, screen: str) -> None:
        """What the terminal shows now; told when it is something else."""
        if screen != self.screen:
            self.screen = screen
            self._tell(self._shown())

    def emit_error(self, message: str, level: Level, time: int | None = None) -> None:
        """Something went wrong. Always told; the last ones are kept for those who come later."""
        trouble = Trouble(message, level, self._now() if time is None else time)
        self.errors = (*self.errors, trouble)[-MAX_ERRORS:]
        self._tell(_agent_error(trouble))

    def _tell(self, told: Told) -> None:
        for reader in self._readers:
            reader.offer(told)

    # -- who watches -------------------------------------------------------------------------------------------------

    def subscribe(self, *names: str) -> tuple[Reader, list[Told]]:
        """A reader of events of these names, and the events that tell the state just before its first one."""
        reader = Reader(frozenset(names), self._most_waiting)
        if self._closed:
            reader.close()
        else:
            self._readers.add(reader)
        return reader, [told for told in self.state() if told.name in names]

    def unsubscribe(self, reader: Reader) -> None:
        """It watches no more. Harmless when it does not."""
        self._readers.discard(reader)

    def state(self) -> list[Told]:
        """The state as events: messages in order, status, screen, errors."""
        return [
            *(message_update(said) for said in self.messages),
            self._status_change(),
            self._shown(),
            *(_agent_error(trouble) for trouble in self.errors),
        ]

    def bodies(self) -> list[dict[str, Any]]:
        """What is told of each message."""
        return [message_update(said).body for said in self.messages]

    def close(self) -> None:
        """Nothing more will happen: readers end when they have read what there is."""
        self._closed = True
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def _status_change(self) -> Told:
        return Told("status_change", "status", {"status": self.status, "agent_type": self.agent_type})

    def _shown(self) -> Told:
        return Told("screen", "screen", {"screen": self.screen.rstrip(BLANK)})


def message_update(said: Said) -> Told:
    """The event of a message."""
    body = {"id": said.id, "role": said.role, "message": said.message, "time": rfc3339(said.time)}
    return Told("message_update", f"message {said.id}", body)


def _agent_error(trouble: Trouble) -> Told:
    body = {"message": trouble.message, "level": trouble.level, "time": rfc3339(trouble.time)}
    return Told("agent_error", f"error {trouble.time} {trouble.message}", body)


def rfc3339(when: int) -> str:
    """A time as clients expect it: a fraction only where there is one."""
    told = iso(when) or ""
    return told.replace(".000000", "") if when % SECOND == 0 else told.rstrip("Z").rstrip("0") + "Z"
