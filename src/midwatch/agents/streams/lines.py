"""Lines of JSON as a child prints them: with a limit for each, and without more of them in memory than are read."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from midwatch.programs.process import Pipe

LINE_LIMIT = 10_000_000
WAITING_LIMIT = 4_000_000
"""Bytes that wait to be read before the child has to wait."""
SHOWN = 200
ODD = re.compile(rb"\\u(d[89a-f]|0000)", re.I)
"""Escapes of half characters and NULs."""


def whole(value: Any) -> Any:
    """A value whose texts can be written anywhere: half characters and NULs are replaced."""
    if isinstance(value, str):
        paired = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return paired.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [whole(one) for one in value]
    return {whole(key): whole(one) for key, one in value.items()} if isinstance(value, dict) else value


class Lines(Pipe):
    """Reads objects, one in a line. What is none is left out and counted. `heard` is called when anything comes."""

    def __init__(self, heard: Callable[[], None], limit: int = LINE_LIMIT) -> None:
        super().__init__()
        self.noise = 0
        """Lines that were no JSON object."""
        self.first_noise = ""
        self.too_long = 0
        self.objects = 0
        self._heard = heard
        self._limit = limit
        self._begun = bytearray()
        self._woken = False
        self._skipping = False
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._hurried = False
        self._over = False
        self._news = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._heard()
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._add(piece)
            self._end_line()
        self._add(rest)
        if self._size > WAITING_LIMIT and not self._paused and not self._hurried:
            self._paused = True
            self._reading().pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.finish()

    def finish(self) -> None:
        """There will be no more."""
        if not self._over:
            self._end_line()
            self._over = True
            self._news.set()

    def hurry(self) -> None:
        """The child has ended: take what is left in its pipe, however much waits."""
        self._hurried = True
        self._go_on()

    def wake(self) -> None:
        """Have `next` wait no longer."""
        self._woken = True
        self._news.set()

    async def next(self, seconds: float) -> dict[str, Any] | None:
        """The next object; None at the end. TimeoutError when none has come in time, or it was woken."""
        while True:
            while self._waiting:
                line = self._waiting.popleft()
                self._size -= len(line)
                if self._paused and self._size <= WAITING_LIMIT // 2:
                    self._go_on()
                if (made := self._object(line)) is not None:
                    return made
            if self._over:
                return None
            self._news.clear()
            async with asyncio.timeout(seconds):
                await self._news.wait()
            if self._woken:
                self._woken = False
                raise TimeoutError

    def _object(self, line: bytes) -> dict[str, Any] | None:
        text = line.strip()
        if not text:
            return None
        try:
            made = json.loads(text)
        except (ValueError, RecursionError):
            made = None
        if isinstance(made, dict):
            self.objects += 1
            return cast(dict[str, Any], whole(made)) if ODD.search(text) else made
        self.noise += 1
        self.first_noise = self.first_noise or text[:SHOWN].decode("utf-8", "replace")
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

    def _go_on(self) -> None:
        if self._paused and not self.closed.is_set():
            self._paused = False
            self._reading().resume_reading()

    def _reading(self) -> asyncio.ReadTransport:
        return cast(asyncio.ReadTransport, self.transport)
