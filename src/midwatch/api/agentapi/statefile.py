"""What `midwatch agentapi server` leaves in files: the conversation, for its next start, and its process id."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from midwatch.api.agentapi.feed import Said, rfc3339
from midwatch.base.clock import SECOND
from midwatch.base.errors import AlreadyRunning, HomeUnusable

VERSION = 1
PRIVATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


class Saved(NamedTuple):
    """A conversation as it was kept."""

    messages: tuple[Said, ...] = ()
    initial_prompt: str = ""
    initial_prompt_sent: bool = False


class Unusable(Exception):
    """The file cannot be taken up, and why."""


def read(text: str) -> Saved:
    """What a state file of version 1 says, or Unusable."""
    try:
        told = json.loads(text)
        if not isinstance(told, dict):
            raise ValueError("it is no object")
        version = told.get("version", 0)
        if version != VERSION:
            raise Unusable(f"unsupported state file version {version} (expected {VERSION})")
        messages = tuple(_said(place, one) for place, one in enumerate(told.get("messages") or ()))
        return Saved(messages, str(told.get("initial_prompt") or ""), bool(told.get("initial_prompt_sent")))
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise Unusable(f"failed to unmarshal state (corrupted or invalid JSON): {problem}") from None


def _said(place: int, told: dict[str, Any]) -> Said:
    role = told["role"]
    if role not in ("user", "agent"):
        raise ValueError(f"there is no role {str(role)[:40]!r}")
    text = str(told["message"])
    text.encode()  # half a character cannot be shown to anybody
    return Said(place, text, role, int(datetime.fromisoformat(told["time"]).timestamp() * SECOND))


def written(saved: Saved) -> str:
    """As a state file of version 1."""
    messages = [
        {"id": said.id, "message": said.message, "role": said.role, "time": rfc3339(said.time)}
        for said in saved.messages
    ]
    body = {
        "version": VERSION, "messages": messages, "initial_prompt": saved.initial_prompt,
        "initial_prompt_sent": saved.initial_prompt_sent,
    }  # fmt: skip
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")) + "\n"


class StateFile:
    """The file of one server. What cannot be taken up is kept under another name, and never overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.readable = True
        self._last = ""

    def load(self) -> Saved:
        """What it says; nothing when there is none. Unusable when it cannot be taken up."""
        try:
            text = self.path.read_bytes().decode()
        except FileNotFoundError:
            return Saved()
        except OSError as problem:
            self.readable = False
            raise Unusable(f"failed to read state file: {problem.strerror}; it will not be written either") from None
        except UnicodeDecodeError as problem:
            aside = self._set_aside()
            raise Unusable(f"failed to unmarshal state (corrupted or invalid JSON): {problem}; {aside}") from None
        try:
            saved = read(text)
        except Unusable as problem:
            raise Unusable(f"{problem}; {self._set_aside()}") from None
        self._last = written(saved)
        return saved

    def _set_aside(self) -> str:
        for number in range(1, 1000):
            other = self.path.with_name(f"{self.path.name}.bad-{number}")
            if not other.exists():
                try:
                    self.path.rename(other)
                except OSError as problem:
                    self.readable = False
                    return f"it could not be set aside ({problem.strerror}) and will not be written"
                return f"it is kept as {other}"
        self.readable = False
        return "it stays as it is and will not be written"

    def save(self, messages: Sequence[Said], prompt: str, sent: bool) -> None:
        """Write it, unless that changes nothing. OSError when it cannot be written."""
        text = written(Saved(tuple(messages), prompt, sent))
        if text == self._last or not self.readable:
            return
        place = self.path.resolve()  # what a link leads to is written, and the link stays
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = place.with_name(f"{place.name}.tmp")
        with os.fdopen(os.open(new, PRIVATE, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(place)
        self._last = text


def prompt_to_send(given: str, saved: Saved) -> tuple[str, bool]:
    """The initial prompt, and whether it was sent already: one that is new is sent, a known one is not sent twice."""
    if given and given != saved.initial_prompt:
        return given, False
    return saved.initial_prompt, saved.initial_prompt_sent


class PidFile:
    """Says which process serves; there is one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self) -> None:
        """Write it down, or AlreadyRunning. What a dead process left is overwritten."""
        try:
            other = int(self.path.read_text().strip())
        except (OSError, ValueError):
            other = 0
        if other > 0 and other != os.getpid() and _lives(other):
            raise AlreadyRunning(f"another instance is already running with PID {other} (PID file: {self.path})")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(self.path, PRIVATE, 0o600), "w") as file:
                file.write(f"{os.getpid()}\n")
        except OSError as problem:
            raise HomeUnusable(f"the PID file {self.path} cannot be written: {problem.strerror}.") from None

    def release(self) -> None:
        """Remove it, if it is still ours."""
        with contextlib.suppress(OSError, ValueError):
            if int(self.path.read_text().strip()) == os.getpid():
                self.path.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
