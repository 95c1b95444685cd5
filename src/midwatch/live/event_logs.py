"""Event logs: files to which chosen events are written, one JSON object per line.

An event log is a durable subscription. A batch of events is on the disk before the position of the subscription is
saved, so no event is lost; after a crash some events may be written twice. A file that is full is renamed, and a new
file begins. If the disk cannot be written, the subscription waits and tries again.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path

from midwatch.base.threads import in_thread
from midwatch.domain.event import Event
from midwatch.domain.event.severity import Severity, list_from, severity_of
from midwatch.live.subscriptions import TryAgain

FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
PIECE = 65536
"""How many bytes are read at once to find the end of the last whole line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogOptions:
    """The file of an event log, and the events that are written to it.

    `include` and `exclude` are kinds of events; `tool_*` means every kind that begins with `tool_`. Without `include`,
    all kinds are written. A file has at most `max_bytes` bytes, and `keep` full files are kept.
    """

    path: Path
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    severity: Severity = "debug"
    max_bytes: int = 10 << 20
    keep: int = 5


class EventLogWriter:
    """Writes chosen events to a file."""

    def __init__(self, options: EventLogOptions) -> None:
        self._options = options
        self._path = options.path
        self._severities = list_from(options.severity)

    async def write(self, events: Sequence[Event]) -> None:
        """Write those of the events that belong into the log. Raise TryAgain if the file cannot be written."""
        if chosen := [event for event in events if self.wants(event)]:
            await in_thread(partial(self._write_lines, chosen))

    def wants(self, event: Event) -> bool:
        """Return whether an event belongs into the log. A `gap` event always does: it says that events are missing."""
        if event.kind == "gap":
            return True
        if severity_of(event) not in self._severities:
            return False
        include, exclude = self._options.include, self._options.exclude
        return (not include or match_kind(event.kind, include)) and not match_kind(event.kind, exclude)

    def _write_lines(self, events: Sequence[Event]) -> None:
        lines = [_to_line(event) for event in events]
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while lines:
                with _open_locked(self._path) as file:
                    size = _drop_torn_line(file)
                    count = self._count_fitting(size, lines)
                    if count:
                        _append(file, b"".join(lines[:count]), size)
                    else:
                        self._rotate()
                del lines[:count]
        except OSError as problem:
            why = problem.strerror or str(problem)
            raise TryAgain(
                f"the event log {self._path} cannot be written: {why}; make space, or correct its rights."
            ) from problem

    def _count_fitting(self, size: int, lines: Sequence[bytes]) -> int:
        """Return how many lines fit into a file of `size` bytes. One line of any length fits into an empty file."""
        count = 0
        while count < len(lines) and (size == 0 or size + len(lines[count]) <= self._options.max_bytes):
            size += len(lines[count])
            count += 1
        return count

    def _rotate(self) -> None:
        """Rename the full file to `NAME.1`, and `NAME.1` to `NAME.2`, and so on; remove the oldest file."""
        number = max(1, self._options.keep)
        while (surplus := self._numbered(number)).exists():
            surplus.unlink()
            number += 1
        for number in range(self._options.keep - 1, 0, -1):
            with suppress(FileNotFoundError):
                self._numbered(number).replace(self._numbered(number + 1))
        if self._options.keep:
            self._path.replace(self._numbered(1))
        else:
            self._path.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


@lru_cache(4096)
def match_kind(kind: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a kind of event matches one of the patterns."""
    return any(fnmatchcase(kind, pattern) for pattern in patterns)


def _to_line(event: Event) -> bytes:
    shown = event.snapshot()
    try:
        text = json.dumps(shown, ensure_ascii=False, allow_nan=False, default=str)
    except (TypeError, ValueError, RecursionError):  # a payload that has not been stored yet may contain any objects
        text = json.dumps({**shown, "payload": {"text": str(event.payload)}}, ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"


@contextmanager
def _open_locked(path: Path) -> Iterator[int]:
    """Open the file for appending. No other process or thread can have the file open this way at the same time."""
    while True:
        file = os.open(path, FLAGS, 0o600)
        try:
            state = os.fstat(file)
            if not stat.S_ISREG(state.st_mode):
                raise OSError(f"{path} is not a regular file")
            if state.st_mode & 0o077:
                os.fchmod(file, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_file_at(path, state):
                yield file
                return
        finally:
            os.close(file)


def _is_file_at(path: Path, state: os.stat_result) -> bool:
    """Return whether the file is still at the path; it may have been renamed while this thread waited for its lock."""
    with suppress(FileNotFoundError):
        return os.path.samestat(state, path.stat())
    return False


def _drop_torn_line(file: int) -> int:
    """Remove an incomplete last line, which a killed process has left, and return the size of the file.

    Its event is written again, because its position was not saved.
    """
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - PIECE)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        end = start + newline + 1 if newline >= 0 else start
        if newline >= 0:
            break
    if end < size:
        os.ftruncate(file, end)
    return end


def _append(file: int, text: bytes, size: int) -> None:
    """Append the text to a file of `size` bytes, durably and completely, or not at all."""
    rest = memoryview(text)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise
