"""Reads JSON lines from a child process. The length of a line and the memory for waiting lines are limited."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from midwatch.programs.process import DRAIN, Pipe, wait_within

LINE_LIMIT = 10_000_000
WAITING_LIMIT = 4_000_000  # bytes that may wait to be read; with more, the child has to wait
SHOWN = 200
KEPT = 20_000  # bytes of the last lines that are kept
HALF_CHARACTERS = re.compile(rb"\\u(d[89a-f]|0000)", re.I)  # JSON escapes of surrogates and NULs


def repair(value: Any) -> Any:
    """Return a JSON value whose texts every database can store. Single surrogates and NULs are replaced."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\0", "\ufffd")
    if isinstance(value, list):
        return [repair(item) for item in value]
    return {repair(key): repair(item) for key, item in value.items()} if isinstance(value, dict) else value


class Lines(Pipe):
    """Reads JSON objects, one in each line. Lines that are not JSON objects are skipped and counted.

    `on_data` is called when data arrives. With `strict`, reading stops at a line that is too long. With `noise_limit`,
    reading stops after this number of lines that are not objects.
    """

    def __init__(
        self,
        on_data: Callable[[], None],
        limit: int = LINE_LIMIT,
        *,
        strict: bool = False,
        noise_limit: int | None = None,
    ) -> None:
        super().__init__()
        self.noise = 0  # lines that were not a JSON object
        self.first_noise = ""
        self.too_long = 0
        self.objects = 0
        self._last: deque[bytes] = deque()
        self._last_size = 0
        self._on_data = on_data
        self._limit = limit
        self._strict = strict
        self._noise_limit = noise_limit
        self._begun = bytearray()
        self._woken = False
        self._skipping = False
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._hurried = False
        self._over = False
        self._news = asyncio.Event()

    @property
    def more(self) -> bool:
        """Whether another line has arrived already."""
        return bool(self._waiting)

    def data_received(self, data: bytes) -> None:
        self._on_data()
        *ended, unfinished = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            self._end_line()
        self._add(unfinished)
        if self._strict and self.too_long:
            self.finish()
        if self._size > WAITING_LIMIT and not self._paused and not self._hurried:
            self._paused = True
            self._transport().pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.finish()

    def finish(self) -> None:
        """Stop reading. `next` still returns the lines that have arrived."""
        if not self._over:
            self._end_line()
            self._over = True
            self._news.set()

    def hurry(self) -> None:
        """Read the remaining output without pauses and without a memory limit, because the child has ended."""
        self._hurried = True
        self._resume()

    async def drain(self) -> None:
        """Read the remaining output after the child has exited.

        The wait is limited, because a process that the child started may keep the pipe open.
        """
        self.hurry()
        await wait_within(DRAIN, self.closed)
        self.finish()

    def wake(self) -> None:
        """Make the running call of `next` raise TimeoutError."""
        self._woken = True
        self._news.set()

    async def next(self, seconds: float | None = None) -> dict[str, Any] | None:
        """Return the next object; None at the end of the output. Raise TimeoutError after `seconds` or `wake`."""
        while True:
            while self._waiting:
                line = self._waiting.popleft()
                self._size -= len(line)
                if self._paused and self._size <= WAITING_LIMIT // 2:
                    self._resume()
                if (value := self._parse(line)) is not None:
                    return value
            if self._over:
                return None
            self._news.clear()
            async with asyncio.timeout(seconds):
                await self._news.wait()
            if self._woken:
                self._woken = False
                raise TimeoutError

    def last_lines(self) -> str:
        """Return the last lines as they were printed."""
        return b"\n".join(self._last).decode("utf-8", "replace")

    def _keep(self, text: bytes) -> None:
        self._last.append(text[:KEPT])
        self._last_size += len(self._last[-1])
        while self._last_size > KEPT and len(self._last) > 1:
            self._last_size -= len(self._last.popleft())

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        text = line.strip()
        if not text:
            return None
        self._keep(text)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            self.objects += 1
            return cast(dict[str, Any], repair(value)) if HALF_CHARACTERS.search(text) else value
        self.noise += 1
        self.first_noise = self.first_noise or text[:SHOWN].decode("utf-8", "replace")
        if self._noise_limit is not None and self.noise > self._noise_limit:
            self.finish()
            self._waiting.clear()
        return None

    def _add(self, piece: bytes) -> None:
        if self._skipping:
            return
        if len(self._begun) + len(piece) > self._limit:
            self._skipping = True
            self.too_long += 1
            self._begun.clear()
        else:
            self._begun += piece

    def _end_line(self) -> None:
        if self._begun:
            self._waiting.append(bytes(self._begun))
            self._size += len(self._begun)
            self._begun.clear()
            self._news.set()
        self._skipping = False

    def _resume(self) -> None:
        if self._paused and not self.closed.is_set():
            self._paused = False
            self._transport().resume_reading()

    def _transport(self) -> asyncio.ReadTransport:
        return cast(asyncio.ReadTransport, self.transport)
