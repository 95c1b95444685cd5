"""What is being written now: texts and screens as live events have told them so far, and which of these are over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from midwatch.domain.event import Event, EventFilter

ENDS = frozenset({"message_update", "thought_update", "turn_end", "task_finished", "session_closed"})
"""Events after which something is not being written any more."""
PIECES = {"message_delta": "message_id", "thought_delta": "thought_id"}
"""Live events that are pieces of a text, and where they name it."""
WHOLES = {"message_update": "message_delta", "thought_update": "thought_delta"}
LONGEST_WRITTEN = 1_000_000
MOST_WRITTEN = 1000
MOST_OVER = 4096

Name = tuple[str | int | None, ...]


class Written(NamedTuple):
    """A message that is being written, as far as it is."""

    message_id: str
    task_id: str | None
    session_key: str | None
    text: str


class Drafts:
    """What live events have told so far."""

    def __init__(self) -> None:
        self._screens: dict[str, Event] = {}
        self._texts: dict[str, _Text] = {}
        self._over: dict[Name, int] = {}

    def note(self, live: Event) -> None:
        """Take in a live event."""
        if live.kind == "screen_update" and live.session_key:
            self._screens[live.session_key] = live
        elif live.kind == "message_delta":
            name = live.payload["message_id"]
            if name not in self._texts:
                if len(self._texts) >= MOST_WRITTEN:
                    del self._texts[next(iter(self._texts))]
                self._texts[name] = _Text(live)
            self._texts[name].add(live.payload["offset"], live.payload["text"])

    def forget(self, made: Event) -> None:
        """A text is whole, its turn is over, or the session is closed."""
        if made.kind == "session_closed":
            self._screens.pop(made.session_key or "", None)
        elif made.kind == "message_update":
            self._texts.pop(made.payload["message_id"], None)
        elif made.kind in ("turn_end", "task_finished") and self._texts:
            for name in [name for name, text in self._texts.items() if text.first.task_id == made.task_id]:
                del self._texts[name]
        if len(self._over) >= MOST_OVER:
            del self._over[next(iter(self._over))]
        self._over[_ended(made)] = made.seq

    def over(self, live: Event, seq: int) -> bool:
        """Whether a live event that was told after the stored event `seq` is about something that has ended since."""
        return any(self._over.get(name, 0) > seq for name in _names(live))

    def texts(self, which: EventFilter) -> tuple[Written, ...]:
        """Those a filter asks for."""
        return tuple(
            Written(name, text.first.task_id, text.first.session_key, "".join(text.parts))
            for name, text in self._texts.items()
            if which.task_id in (None, text.first.task_id) and which.session_key in (None, text.first.session_key)
        )

    def screen(self, session_key: str | None) -> str | None:
        """The screen of a session."""
        found = self._screens.get(session_key or "")
        return found.payload["screen"] if found else None

    def so_far(self) -> Iterator[Event]:
        """Everything, as events that tell it from its beginning."""
        for name, text in self._texts.items():
            yield text.first._replace(id="", payload={"message_id": name, "offset": 0, "text": "".join(text.parts)})
        for shown in self._screens.values():
            yield shown._replace(id="")


class _Text:
    """A message that is being written."""

    def __init__(self, first: Event) -> None:
        self.first = first._replace(payload={})
        self.parts: list[str] = []
        self._length = 0

    def add(self, offset: int, text: str) -> None:
        """Write at `offset`. What would leave a hole, or be too long, is left to the whole message that follows."""
        if offset < self._length:  # it is written anew from there
            self.parts = ["".join(self.parts)[:offset]]
            self._length = offset
        if offset == self._length and offset + len(text) <= LONGEST_WRITTEN:
            self.parts.append(text)
            self._length += len(text)


def ends(made: Event, live: Event) -> bool:
    """Whether a stored event says that what a live one is about is over."""
    return _ended(made) in _names(live)


def _ended(made: Event) -> Name:
    if made.kind in WHOLES:
        piece = WHOLES[made.kind]
        return piece, made.task_id, made.payload[PIECES[piece]]
    if made.kind == "turn_end":
        return "turn", made.task_id, made.attempt
    return ("session", made.session_key) if made.kind == "session_closed" else ("task", made.task_id)


def _names(live: Event) -> tuple[Name, ...]:
    """Everything whose end is the end of a live event's text or screen."""
    if live.kind == "screen_update":
        return (("session", live.session_key),)
    turn: tuple[Name, ...] = (("task", live.task_id), ("turn", live.task_id, live.attempt))
    return (*turn, (live.kind, live.task_id, live.payload[PIECES[live.kind]])) if live.kind in PIECES else turn


def joined(waiting: Iterable[Event]) -> list[Event]:
    """Live events in order; what was written to a text bit by bit meanwhile comes as one."""
    made: list[Event] = []
    for live in waiting:
        last = made[-1] if made else None
        if last is not None and last.kind == live.kind and live.kind in PIECES and _continues(last, live):
            text = last.payload["text"] + live.payload["text"]
            made[-1] = last._replace(id="", payload={**last.payload, "text": text})
        else:
            made.append(live)
    return made


def _continues(last: Event, live: Event) -> bool:
    """Whether a piece begins where the one before it ended."""
    here, there, name = last.payload, live.payload, PIECES[live.kind]
    same = here[name] == there[name] and last.task_id == live.task_id
    return bool(same and here["offset"] + len(here["text"]) == there["offset"])
