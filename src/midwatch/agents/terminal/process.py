"""A program in a pseudo terminal. It starts in its own session, and waits until it is admitted."""

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
from io import FileIO
from typing import Any

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
MOST_AT_ONCE = 64  # pieces that are read before other tasks run; the kernel returns 4 KB in each
MOST_UNREAD = 4_000_000  # bytes that may wait until the program reads them


class TerminalChild(Child):
    """A program whose input and output are a terminal."""

    def __init__(
        self, *child: Any, master: FileIO, slave: FileIO, on_data: Callable[[bytes], None], **more: Any
    ) -> None:
        super().__init__(*child, **more)
        self._master, self._slave, self._on_data = master, slave, on_data
        self._unsent = bytearray()

    @classmethod
    async def begin(
        cls, program: Program, turn: ProgramOwner, size: tuple[int, int], on_data: Callable[[bytes], None]
    ) -> TerminalChild:
        """Start the program in a terminal of `size` columns and rows; it waits until `admit`.

        `on_data` gets its output.
        """
        try:
            master, slave = (FileIO(descriptor, "r+") for descriptor in os.openpty())
        except OSError as problem:
            raise AgentError(f"no terminal could be opened: {problem.strerror}; close some sessions") from problem
        try:
            _set_size(master, size)
            os.set_blocking(master.fileno(), False)
            enter = ("/bin/sh", "-c", ENTER, "midwatch-terminal", os.ttyname(slave.fileno()))
            child = await cls.spawn(
                replace(program, enter=enter), turn, Pipe(), Pipe(), master=master, slave=slave, on_data=on_data
            )
        except BaseException:
            master.close()
            slave.close()
            raise
        asyncio.get_running_loop().add_reader(master, child._read_more)
        return child

    # -- out -----------------------------------------------------------------------------------------------------

    def type(self, data: bytes) -> None:
        """Write to the terminal as if typed, in order, as fast as the program reads."""
        if self._master.closed or self.exited.is_set():
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
                del self._unsent[: os.write(self._master.fileno(), self._unsent[:PIECE])]
        except BlockingIOError:
            loop.add_writer(self._master, self._write_more)
            return
        except OSError:  # the terminal is closed
            self._unsent.clear()
        loop.remove_writer(self._master)

    # -- in ------------------------------------------------------------------------------------------------------

    def _read_more(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(MOST_AT_ONCE):
                try:
                    data = os.read(self._master.fileno(), PIECE)
                except OSError as problem:
                    if isinstance(problem, BlockingIOError):
                        raise
                    data = b""
                if not data:
                    asyncio.get_running_loop().remove_reader(self._master)
                    return
                self._on_data(data)

    def drain(self) -> None:
        """Read what the program wrote before it ended."""
        if not self._master.closed:
            self._read_more()

    # -- the terminal --------------------------------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal. The program gets SIGWINCH."""
        if not self._master.closed:
            _set_size(self._master, (columns, rows))

    @property
    def line_mode(self) -> bool:
        """Whether the kernel collects and echoes lines, because the program has not asked for single keys."""
        return not self._master.closed and bool(termios.tcgetattr(self._slave)[3] & termios.ICANON)

    def signal_foreground(self) -> None:
        """Send SIGINT to the foreground process and to the program itself."""
        with suppress(OSError, ValueError):
            signal_group(os.tcgetpgrp(self._master.fileno()), signal.SIGINT)
        self.interrupt("stop")

    async def _end(self) -> None:
        await super()._end()
        if not self._master.closed:
            self._read_more()
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._master)
            loop.remove_writer(self._master)
            self._master.close()
            self._slave.close()


def _set_size(terminal: FileIO, size: tuple[int, int]) -> None:
    columns, rows = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
