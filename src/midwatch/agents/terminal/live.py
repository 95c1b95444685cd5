"""A program that runs in a terminal: its process, its screen and its status."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress

from midwatch.agents.terminal.process import TerminalChild
from midwatch.agents.terminal.profile import Profile
from midwatch.agents.terminal.screen import Screen
from midwatch.agents.terminal.status import Reading, Watch
from midwatch.base.errors import AgentError
from midwatch.domain.agent import ProgramOwner, Screenshot
from midwatch.programs.process import Program, wait_within

BURST = 0.01  # seconds in which the pieces of one output usually arrive
SHOWN_EVERY, SHOWN_AT_LEAST_EVERY = 0.05, 1.0
"""Seconds between two screens that the listener gets: first after keys or silence, last while output continues."""
KEYS = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)  # one key each
KEY_PAUSE = 0.1
SILENCE = 0.5
STILL = 0.15  # seconds without a change after which a screen counts as completely drawn
UNWANTED_LINES = 2000  # lines that scrolled off and are kept while nobody waits for a reply


class Live:
    """A terminal with a program in it."""

    def __init__(self, profile: Profile, size: tuple[int, int], listener: Callable[[str], None] | None) -> None:
        self.profile = profile
        self.screen = Screen(*size, reply=self._answer, signal=self._pass_signal)
        self.watch = Watch(profile, self.screen, lambda: self.child.input_state)
        self._listener = listener
        self.news = asyncio.Event()  # set when there is new output, or when all waiters must check again
        self._child: TerminalChild | None = None
        self._showing: asyncio.TimerHandle | None = None
        self._pace = SHOWN_EVERY
        self._heard_at = 0.0
        self._recording = False
        self._closed = False

    async def start(self, program: Program, turn: ProgramOwner) -> None:
        """Start the program. It runs only after its process group is in the store."""
        self.watch.note_output(self._now())
        self._child = await TerminalChild.begin(program, turn, self.screen.size, self._take_output)
        await self._child.admit(turn)

    @property
    def child(self) -> TerminalChild:
        """The process of the program. It must have been started."""
        assert self._child is not None
        return self._child

    @property
    def running(self) -> bool:
        """Whether the program has been started and has not exited."""
        return self._child is not None and not self._child.exited.is_set()

    def type(self, keys: str | bytes) -> None:
        """Type keys into the terminal."""
        if self._child is not None and keys:
            self._child.type(keys.encode() if isinstance(keys, str) else keys)

    async def type_each(self, keys: str) -> None:
        """Type keys one after the other, because a program reads two Escapes at once as another key."""
        for key in KEYS.findall(keys):
            self.type(key)
            await asyncio.sleep(KEY_PAUSE)

    def press(self, keys: bytes) -> None:
        """Type keys for a person, and show the next screens soon."""
        self._pace = SHOWN_EVERY
        self.type(keys)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        if self._child is not None:
            self._child.resize(columns, rows)
        self.screen.resize(columns, rows)
        self._show_soon()

    def listen(self, listener: Callable[[str], None] | None) -> None:
        """Call `listener` with the text of the screen soon after each change. None ends this."""
        self._listener = listener

    def record(self, wanted: bool) -> None:
        """Start or stop keeping all lines that scroll off the screen. Outside a turn they would only use memory."""
        self._recording = wanted
        if not self._closed:
            self.screen.forget_history()

    # -- status and screen ---------------------------------------------------------------------------------------

    def read(self) -> Reading:
        """Return the status of the program."""
        if self._child is not None and self._child.exited.is_set():
            return Reading("exited", "process")
        return self.watch.read(self._now())

    async def until(self, reached: Callable[[Reading], bool], seconds: float | None = None) -> Reading:
        """Wait until `reached` returns True, the program has ended, or `seconds` are over. Return the last status."""
        end = None if seconds is None else self._now() + seconds
        while True:
            self.news.clear()
            reading = self.read()
            if reached(reading) or reading.state == "exited":
                return reading
            remaining = None if end is None else end - self._now()
            if remaining is not None and remaining <= 0:
                return reading
            waits = [wait for wait in (remaining, reading.again) if wait is not None]
            if not waits:
                await self.news.wait()
            elif not await wait_within(min(waits) + 0.001, self.news):
                continue
            await asyncio.sleep(BURST)

    async def stand_still(self, seconds: float) -> None:
        """Wait until the screen has not changed for a moment, at most `seconds`. Keys typed earlier may get lost."""
        end, version = self._now() + seconds, -1
        while version != self.screen.version and self._now() < end:
            version = self.screen.version
            await asyncio.sleep(STILL)

    def screenshot(self, *, styled: bool = False) -> Screenshot:
        """Return the current screen."""
        reading, screen = self.read(), self.screen
        columns, rows = screen.size
        return Screenshot(
            text=screen.text(), columns=columns, rows=rows, cursor=screen.cursor, title=screen.title,
            status=reading.state, evidence=reading.evidence, certain=reading.certain,
            styled=screen.styled_text() if styled else "",
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
        """Free the memory of the screen."""
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
        self.watch.note_output(now)
        self.news.set()
        self._show_soon()

    def _answer(self, data: bytes) -> None:
        with suppress(AgentError):  # a program that sends many queries but reads no answers gets none
            self.type(data)

    def _pass_signal(self, signal: object) -> None:
        self.watch.take_signal(signal)  # type: ignore[arg-type]  # the screen is built before the watch

    def _show_soon(self) -> None:
        if self._listener is not None and self._showing is None:
            self._showing = asyncio.get_running_loop().call_later(self._pace, self._show)

    def _show(self) -> None:
        self._showing = None
        self._pace = min(2 * self._pace, SHOWN_AT_LEAST_EVERY)
        if self._listener is not None and not self._closed:
            self._listener(self.screen.text())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
