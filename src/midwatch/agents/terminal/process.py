"""A program in a pseudo terminal. The program has its own process session, and waits until `admit` is called."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from midwatch.base.errors import AgentError
from midwatch.domain.agent import ProgramOwner
from midwatch.programs.process import Child, Pipe, Program
from midwatch.programs.reaper import signal_group

SURROUNDINGS: Mapping[str, str] = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
OUTER = "COLUMNS LINES TERM_PROGRAM TERM_PROGRAM_VERSION TMUX STY VTE_VERSION KITTY_WINDOW_ID WT_SESSION NO_COLOR"
"""Variables that describe the terminal in which midwatch itself was started."""
ENTER = f'unset {OUTER}; tty=$1; shift; exec <>"$tty" >&0 2>&1; exec "$@"'
"""Shell code that starts the program. The first terminal that a new process session opens becomes its own terminal."""
PIECE = 65536
MOST_AT_ONCE = 64  # pieces that are read before other tasks run; the kernel returns 4 KB in each
MOST_UNREAD = 4_000_000  # bytes that may wait until the program reads them
MOST_PROCESSES = 50  # processes of a program that are searched for the one that reads keys
READ_CALL = "0" if os.uname().machine == "x86_64" else "63"  # the number of the system call `read`

InputState = Literal["unread", "waiting", "taken", "unknown"]
"""Some keys are unread. Or all keys are read, and a process waits for more, or none waits, or this is not known."""


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
        """Start the program in a terminal with `size` (columns, rows). The program waits until `admit` is called.

        `on_data` gets the output of the program.
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
        """Type data into the terminal. The data is sent in order, as fast as the program reads it."""
        if self._master.closed or self.exited.is_set():
            return
        if len(self._unsent) + len(data) > MOST_UNREAD:
            raise AgentError("the program does not read its input; interrupt the turn or close the session")
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
        """Read the output that the program wrote before it ended."""
        if not self._master.closed:
            self._read_more()

    # -- the terminal --------------------------------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal. The program gets SIGWINCH."""
        if not self._master.closed:
            _set_size(self._master, (columns, rows))

    @property
    def line_mode(self) -> bool:
        """Whether the program gets whole lines. Then the kernel collects and shows the keys until Enter."""
        return not self._master.closed and bool(termios.tcgetattr(self._slave)[3] & termios.ICANON)

    @property
    def input_state(self) -> InputState:
        """What happened to the keys that were typed. Whether a process waits for more is known in line mode only.

        In other modes, programs often wait for keys while they work.
        """
        if self._master.closed:
            return "unknown"
        if int.from_bytes(fcntl.ioctl(self._slave, termios.FIONREAD, b"\0" * 4), sys.byteorder):
            return "unread"
        with suppress(OSError):
            if self.line_mode:
                leader = os.tcgetpgrp(self._master.fileno())
                return "waiting" if _waits_for_keys(leader, os.ttyname(self._slave.fileno())) else "taken"
        return "unknown"

    def drop_unread(self) -> None:
        """Drop the keys that the program has not read."""
        if not self._master.closed:
            termios.tcflush(self._slave, termios.TCIFLUSH)

    def signal_foreground(self) -> None:
        """Send SIGINT to the process group in the foreground of the terminal and to the program itself."""
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


def _waits_for_keys(leader: int, terminal: str) -> bool:
    """Return whether a process waits in `read` for keys: `leader` or a process that it has started."""
    waiting, checked = [leader], 0
    while waiting and checked < MOST_PROCESSES:
        pid, checked = waiting.pop(), checked + 1
        with suppress(OSError, ValueError):  # the process has ended, or the system does not show this
            for thread in Path(f"/proc/{pid}/task").iterdir():
                call = (thread / "syscall").read_text().split()
                if call[:1] == [READ_CALL] and _read_link(pid, int(call[1], 16)) == terminal:
                    return True
                waiting += map(int, (thread / "children").read_text().split())
    return False


def _read_link(pid: int, descriptor: int) -> str:
    return str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())


def _set_size(terminal: FileIO, size: tuple[int, int]) -> None:
    columns, rows = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
