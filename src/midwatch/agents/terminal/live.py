"""A program that runs in a terminal: its process, its screen and its status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from midwatch.agents.terminal.process import TerminalChild
from midwatch.agents.terminal.profiles import Profile
from midwatch.agents.terminal.screen import Screen
from midwatch.agents.terminal.status import Reading, Watch
from midwatch.base.errors import AgentError
from midwatch.domain.agent import ProgramOwner, Screenshot
from midwatch.programs.process import Program, wait_within

BURST = 0.01  # seconds in which output that belongs together usually arrives
SHOWN_EVERY, SHOWN_AT_LEAST_EVERY = 0.05, 1.0
"""Seconds between two screens that are shown: short after keys or silence, longer while the program goes on writing."""
SILENCE = 0.5
UNWANTED_LINES = 2000  # lines that scrolled off and are kept while nobody waits for a reply


class Live:
    """A terminal with a program in it."""

    def __init__(self, profile: Profile, size: tuple[int, int]) -> None:
        self.profile = profile
        self.screen = Screen(*size, reply=self._answer, signal=self._pass_signal)
        self.watch = Watch(profile, self.screen)
        self.listener: Callable[[str], None] | None = None
        self.news = asyncio.Event()  # set when the program has written, or when everybody should look again
        self._child: TerminalChild | None = None
        self._showing: asyncio.TimerHandle | None = None
        self._pace = SHOWN_EVERY
        self._heard_at = 0.0
        self._recording = False
        self._closed = False

    async def start(self, program: Program, turn: ProgramOwner) -> None:
        """Start the program once the store knows its group."""
        self.watch.output(self._now())
        self._child = await TerminalChild.begin(program, turn, self.screen.size, self._take_output)
        await self._child.admit(turn)

    @property
    def child(self) -> TerminalChild:
        """The process, which has been started."""
        assert self._child is not None
        return self._child

    @property
    def running(self) -> bool:
        """Whether there is a program to type into."""
        return self._child is not None and not self._child.exited.is_set()

    def type(self, keys: str | bytes) -> None:
        """Press keys."""
        if self._child is not None and keys:
            self._child.type(keys.encode() if isinstance(keys, str) else keys)

    def press(self, keys: bytes) -> None:
        """Press keys for a person, who wants to see the result soon."""
        self._pace = SHOWN_EVERY
        self.type(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        if self._child is not None:
            self._child.resize(columns, rows)
        self.screen.resize(columns, rows)
        self._show_soon()

    def record(self, wanted: bool) -> None:
        """Begin or stop to keep every line that scrolls off. The lines take memory."""
        self._recording = wanted
        if not self._closed:
            self.screen.forget_history()

    # -- what it does --------------------------------------------------------------------------------------------

    def read(self) -> Reading:
        """Return what the program does now."""
        if self._child is not None and self._child.exited.is_set():
            return Reading("exited", "process")
        return self.watch.read(self._now())

    async def until(self, reached: Callable[[Reading], bool], seconds: float | None = None) -> Reading:
        """Wait until the condition is met, the program has ended, or the time is over. Return the last reading."""
        end = None if seconds is None else self._now() + seconds
        while True:
            self.news.clear()
            reading = self.read()
            if reached(reading) or reading.state == "exited":
                return reading
            left = None if end is None else end - self._now()
            if left is not None and left <= 0:
                return reading
            waits = [wait for wait in (left, reading.again) if wait is not None]
            if not waits:
                await self.news.wait()
            elif not await wait_within(min(waits) + 0.001, self.news):
                continue
            await asyncio.sleep(BURST)

    def screenshot(self, *, styled: bool = False) -> Screenshot:
        """Return what the terminal shows now."""
        reading, screen = self.read(), self.screen
        columns, rows = screen.size
        return Screenshot(
            text=screen.text(), columns=columns, rows=rows, cursor=screen.cursor, title=screen.title,
            status=reading.state, evidence=reading.evidence, certain=reading.certain,
            styled=screen.styled() if styled else "",
        )  # fmt: skip

    # -- its end -------------------------------------------------------------------------------------------------

    async def wait_for_exit(self) -> int | None:
        """Wait until the program has ended and all its output is on the screen, and return its exit code."""
        await self.child.exited.wait()
        self.child.drain()
        return self.child.returncode

    async def wait_for_end(self) -> int | None:
        """Wait until the program and all its processes have ended, and return its exit code."""
        await self.wait_for_exit()
        await self.child.end()
        self.news.set()
        return self.child.returncode

    async def end(self) -> None:
        """End the program."""
        if self._child is not None:
            self._child.interrupt("terminate")
            await self._child.end()
        self.news.set()

    def free(self) -> None:
        """Free the screen."""
        if self._showing is not None:
            self._showing.cancel()
        if not self._closed:
            self._closed = True
            self.screen.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _take_output(self, data: bytes) -> None:
        if self._closed:
            return
        self.screen.feed(data)
        if not self._recording and self.screen.height > UNWANTED_LINES:
            self.screen.forget_history()
        now = self._now()
        if now - self._heard_at > SILENCE:
            self._pace = SHOWN_EVERY
        self._heard_at = now
        self.watch.output(now)
        self.news.set()
        self._show_soon()

    def _answer(self, data: bytes) -> None:
        with suppress(AgentError):  # a program that asks and asks and reads no answer does without
            self.type(data)

    def _pass_signal(self, signal: object) -> None:
        self.watch.take_signal(signal)  # type: ignore[arg-type]  # the screen is made before the watch that reads it

    def _show_soon(self) -> None:
        if self.listener is not None and self._showing is None:
            self._showing = asyncio.get_running_loop().call_later(self._pace, self._show)

    def _show(self) -> None:
        self._showing = None
        self._pace = min(2 * self._pace, SHOWN_AT_LEAST_EVERY)
        if self.listener is not None and not self._closed:
            self.listener(self.screen.text())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
