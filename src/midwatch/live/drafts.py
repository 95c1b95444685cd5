"""Drafts: unfinished texts of agents, and screens of terminals, collected from live events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from midwatch.domain.event import Event, EventFilter

ENDS = frozenset({"message_update", "thought_update", "turn_end", "task_finished", "session_closed"})
PIECES = {"message_delta": "message_id", "thought_delta": "thought_id"}
"""The kinds of live events that are pieces of a text, and the payload field with the id of the text."""
WHOLES = {"message_update": "message_delta", "thought_update": "thought_delta"}
LONGEST_DRAFT = 1_000_000
MOST_DRAFTS = 1000
MOST_ENDED = 4096

Name = tuple[str | int | None, ...]


class Draft(NamedTuple):
    """The text so far of a message that is being written."""

    message_id: str
    task_id: str | None
    session_key: str | None
    text: str


class Drafts:
    """All texts that are being written now, as far as they are known, and the latest screen of each terminal."""

    def __init__(self) -> None:
        self._screens: dict[str, Event] = {}
        self._texts: dict[str, _Text] = {}

    def note(self, live: Event) -> None:
        """Add a live event: a piece of a text to its draft, or a screen in place of the screen before."""
        if live.kind == "screen_update" and live.session_key:
            self._screens[live.session_key] = live
        elif live.kind == "message_delta":
            name = live.payload["message_id"]
            if name not in self._texts:
                if len(self._texts) >= MOST_DRAFTS:
                    del self._texts[next(iter(self._texts))]
                self._texts[name] = _Text(live)
            self._texts[name].add(live.payload["offset"], live.payload["text"])

    def forget(self, event: Event) -> None:
        """Remove the drafts that a stored event ends.

        The event is the end of a message, a turn, a task or a session.
        """
        if event.kind == "session_closed":
            self._screens.pop(event.session_key or "", None)
        elif event.kind == "message_update":
            self._texts.pop(event.payload["message_id"], None)
        elif event.kind in ("turn_end", "task_finished") and self._texts:
            for name in [name for name, text in self._texts.items() if text.first.task_id == event.task_id]:
                del self._texts[name]

    def texts(self, which: EventFilter) -> tuple[Draft, ...]:
        """Return the unfinished texts that match a filter."""
        return tuple(
            Draft(name, text.first.task_id, text.first.session_key, text.join())
            for name, text in self._texts.items()
            if which.task_id in (None, text.first.task_id) and which.session_key in (None, text.first.session_key)
        )

    def screen(self, session_key: str | None) -> str | None:
        """Return the screen of a session's terminal, or None if there is none."""
        update = self._screens.get(session_key or "")
        return update.payload["screen"] if update else None

    def so_far(self) -> Iterator[Event]:
        """Yield one event for each draft, with its whole text so far, and one event for each screen."""
        for name, text in self._texts.items():
            yield text.first._replace(id="", payload={"message_id": name, "offset": 0, "text": text.join()})
        for shown in self._screens.values():
            yield shown._replace(id="")


class EndedDrafts:
    """The drafts that have ended lately. A live event of another process may arrive after the end of its draft."""

    def __init__(self) -> None:
        self._ends: OrderedDict[Name, int] = OrderedDict()

    def add(self, event: Event) -> None:
        """Add the drafts that a stored event ends."""
        if len(self._ends) >= MOST_ENDED:
            self._ends.popitem(last=False)
        self._ends[_end_name(event)] = event.seq

    def has_ended(self, live: Event, seq: int) -> bool:
        """Return whether the draft of a live event has ended after the stored event `seq`."""
        return any(self._ends.get(name, 0) > seq for name in _names(live))


class _Text:
    """A message that is being written."""

    def __init__(self, first: Event) -> None:
        self.first = first._replace(payload={})
        self.parts: list[str] = []
        self._length = 0

    def add(self, offset: int, text: str) -> None:
        """Write a piece of text at `offset`.

        A piece that leaves a hole, or that makes the text too long, is dropped: the complete message is stored later
        anyway.
        """
        if offset < self._length:  # the agent writes it again from there
            self.parts = ["".join(self.parts)[:offset]]
            self._length = offset
        if offset == self._length and offset + len(text) <= LONGEST_DRAFT:
            self.parts.append(text)
            self._length += len(text)

    def join(self) -> str:
        """Return the whole text. The next call is fast if nothing was written in between."""
        self.parts = ["".join(self.parts)]
        return self.parts[0]


def ends(event: Event, live: Event) -> bool:
    """Return whether a stored event ends the draft that the live event is a piece of."""
    return _end_name(event) in _names(live)


def _end_name(event: Event) -> Name:
    if event.kind in WHOLES:
        piece = WHOLES[event.kind]
        return piece, event.task_id, event.payload[PIECES[piece]]
    if event.kind == "turn_end":
        return "turn", event.task_id, event.attempt
    return ("session", event.session_key) if event.kind == "session_closed" else ("task", event.task_id)


def _names(live: Event) -> tuple[Name, ...]:
    """Return the names of everything whose end also ends the draft of a live event: message, turn, task or session."""
    if live.kind == "screen_update":
        return (("session", live.session_key),)
    turn: tuple[Name, ...] = (("task", live.task_id), ("turn", live.task_id, live.attempt))
    return (*turn, (live.kind, live.task_id, live.payload[PIECES[live.kind]])) if live.kind in PIECES else turn


def join_deltas(waiting: Iterable[Event]) -> list[Event]:
    """Return live events in order; consecutive pieces of the same text are joined into one event."""
    events: list[Event] = []
    for live in waiting:
        last = events[-1] if events else None
        if last is not None and last.kind == live.kind and live.kind in PIECES and _continues(last, live):
            text = last.payload["text"] + live.payload["text"]
            events[-1] = last._replace(id="", payload={**last.payload, "text": text})
        else:
            events.append(live)
    return events


def _continues(last: Event, live: Event) -> bool:
    """Return whether the piece `live` belongs to the same text as `last` and begins where `last` ends."""
    here, there, name = last.payload, live.payload, PIECES[live.kind]
    same = here[name] == there[name] and last.task_id == live.task_id
    return bool(same and here["offset"] + len(here["text"]) == there["offset"])
