"""Collects a message or a thought that arrives in pieces, and makes the live events that show it."""

from __future__ import annotations

from midwatch.domain.event import MessageDelta, ThoughtDelta


class LiveText:
    """Collects the pieces of one text. Only the first `limit` characters are kept."""

    def __init__(self, id: str, limit: int, *, thought: bool = False) -> None:
        self.id = id
        self._limit = limit
        self._thought = thought
        self._pieces: list[str] = []
        self._new: list[str] = []
        self._length = self._shown = self._left_out = 0

    @property
    def has_news(self) -> bool:
        """Whether text was added since the last call of `take_delta`."""
        return bool(self._new)

    def add(self, piece: str) -> None:
        """Add a piece at the end."""
        fitting = piece[: max(0, self._limit - self._length)]
        self._left_out += len(piece) - len(fitting)
        if fitting:
            self._pieces.append(fitting)
            self._new.append(fitting)
            self._length += len(fitting)

    def take_delta(self) -> MessageDelta | ThoughtDelta | None:
        """Return an event with the text that was added since the last call; None if there is no new text."""
        offset, text = self._shown, "".join(self._new)
        self._new.clear()
        self._shown += len(text)
        if not text:
            return None
        if self._thought:
            return ThoughtDelta(thought_id=self.id, offset=offset, text=text)
        return MessageDelta(message_id=self.id, offset=offset, text=text)

    def full_text(self) -> str:
        """Return the text so far."""
        text = "".join(self._pieces)
        return f"{text}\n… {self._left_out} characters left out …" if self._left_out else text
