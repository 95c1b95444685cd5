"""A program in a pseudo terminal: it starts behind the gate, in a session of its own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from midwatch.base.errors import AgentError
from midwatch.domain.agent import ProgramOwner
from midwatch.programs.process import Child, Pipe, Program
from midwatch.programs.reaper import signal_group

SURROUNDINGS: Mapping[str, str] = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
OUTER = "COLUMNS LINES TERM_PROGRAM TERM_PROGRAM_VERSION TMUX STY VTE_VERSION KITTY_WINDOW_ID WT_SESSION NO_COLOR"
"""Variables that describe the terminal in which midwatch itself was started."""
ENTER = f'unset {OUTER}; tty=$1; shift; exec <>"$tty" >&0 2>&1; exec "$@"'
"""The first terminal that the leader of a session opens becomes its controlling terminal."""
PIECE = 65536
MOST_AT_ONCE = 64  # pieces that are read before others have a turn; the kernel gives 4 KB in each
MOST_UNREAD = 4_000_000  # bytes that may wait for a program that does not read


class TerminalChild(Child):
    """A program whose input and output are a terminal."""

    _master = -1
    _slave = -1

    @classmethod
    async def begin(
        cls, program: Program, turn: ProgramOwner, size: tuple[int, int], heard: Callable[[bytes], None]
    ) -> TerminalChild:
        """Start the program in a terminal of `size` columns and rows; it waits until `admit`.

        `heard` gets its output.
        """
        try:
            master, slave = os.openpty()
        except OSError as problem:
            raise AgentError(f"no terminal could be opened: {problem.strerror}; close some sessions") from problem
        try:
            _set_size(master, size)
            entered = replace(program, enter=("/bin/sh", "-c", ENTER, "midwatch-terminal", os.ttyname(slave)))
            child = await cls.spawn(entered, turn, Pipe(), Pipe())
        except BaseException:
            os.close(master)
            os.close(slave)
            raise
        assert isinstance(child, cls)
        child._master, child._slave, child._heard = master, slave, heard
        child._unsent = bytearray()
        os.set_blocking(master, False)
        asyncio.get_running_loop().add_reader(master, child._read_more)
        return child

    _heard: Callable[[bytes], None]
    _unsent: bytearray

    # -- out -----------------------------------------------------------------------------------------------------

    def type(self, data: bytes) -> None:
        """Write to the terminal as if typed, in order, as fast as the program reads."""
        if self._master < 0 or self.exited.is_set():
            return
        if len(self._unsent) + len(data) > MOST_UNREAD:
            raise AgentError("the program does not read what is typed; interrupt it or close the session")
        waiting = bool(self._unsent)
        self._unsent += data
        if not waiting:
            self._write_more()

    def _write_more(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._unsent:
                del self._unsent[: os.write(self._master, self._unsent[:PIECE])]
        except BlockingIOError:
            loop.add_writer(self._master, self._write_more)
            return
        except OSError:  # nobody reads any more
            self._unsent.clear()
        loop.remove_writer(self._master)

    # -- in ------------------------------------------------------------------------------------------------------

    def _read_more(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(MOST_AT_ONCE):
                try:
                    data = os.read(self._master, PIECE)
                except OSError as problem:
                    if isinstance(problem, BlockingIOError):
                        raise
                    data = b""
                if not data:
                    asyncio.get_running_loop().remove_reader(self._master)
                    return
                self._heard(data)

    def drain(self) -> None:
        """Read what the program wrote before it ended."""
        if self._master >= 0:
            self._read_more()

    # -- the terminal --------------------------------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal. The program gets SIGWINCH."""
        if self._master >= 0:
            _set_size(self._master, (columns, rows))

    @property
    def line_mode(self) -> bool:
        """Whether the kernel collects and echoes lines, because the program has not asked for single keys."""
        return self._master >= 0 and bool(termios.tcgetattr(self._slave)[3] & termios.ICANON)

    def signal_foreground(self) -> None:
        """Send SIGINT to the foreground process and to the program itself."""
        with suppress(OSError):
            signal_group(os.tcgetpgrp(self._master), signal.SIGINT)
        self.interrupt("stop")

    async def _end(self) -> None:
        await super()._end()
        if self._master >= 0:
            self._read_more()
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._master)
            loop.remove_writer(self._master)
            os.close(self._master)
            os.close(self._slave)
            self._master = self._slave = -1


def _set_size(descriptor: int, size: tuple[int, int]) -> None:
    columns, rows = size
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
