"""Command `attach`: show a session's terminal. All keys except Ctrl-] go to the agent, even Ctrl-C. Ctrl-] leaves."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from midwatch.base.errors import BadConfig, Conflict, InvalidInput, MidwatchError, NotRunning
from midwatch.cli.command import command
from midwatch.cli.connection import PATIENCE_SECONDS, Desk, connect
from midwatch.cli.output import clean, note
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    import httpx2

LEAVE = b"\x1d"
BAR = "\x1b[7m {} \x1b[0m"
MIN_COLUMNS, MIN_ROWS = 20, 10
CHANGE_KINDS = ("screen_update", "agent_exited", "session_closed")
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
BEGIN_FRAME, END_FRAME = "\x1b[?2026h\x1b[?25l\x1b[0m\x1b[H", "\x1b[?2026l"
REPLY_SECONDS = 30.0
LEAVE_SECONDS = 2.0
"""Seconds in which connections to a server must close after the user has left. Some servers never end a stream."""
MAX_KEYS = 50_000

SessionKey = Annotated[str | None, Argument(metavar="SESSION", help="Key of a session with a terminal.")]
Url = Annotated[str | None, Option("--url", "-u", help="Address of an agentapi server, instead of a session.")]


class View(NamedTuple):
    """A screen to draw: its rows with escape sequences, and the column and row of the cursor."""

    painted: str
    cursor: tuple[int, int] | None


class SessionTerminal:
    """The terminal of a session. The agent of the session may work on another machine."""

    def __init__(self, desk: Desk, key: str) -> None:
        self.name = key
        self._desk = desk
        self._before: tuple[int, int] | None = None

    async def begin(self, columns: int, rows: int) -> None:
        """Open the terminal if it is closed, and set its size."""
        client = self._desk.client
        try:
            screen = await client.screen(self.name)
        except Conflict:
            screen = await client.open_terminal(self.name)
        self._before = screen["columns"], screen["rows"]
        await client.resize(self.name, columns, rows)

    async def view(self) -> View:
        """Return the screen of the terminal. Raise Conflict if the terminal is closed."""
        screen = await self._desk.client.screen(self.name, styled=True)
        return View(screen["styled"], (screen["cursor"][0], screen["cursor"][1]))

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield after each change of the terminal. May also yield once at the start."""
        events: AsyncGenerator[Any, None]
        if self._desk.runtime is None:
            events = self._desk.client.watch_session(self.name, kinds=CHANGE_KINDS, patience=PATIENCE_SECONDS)
        else:
            last = (await self._desk.client.events(limit=0))["last_seq"]
            events = self._desk.follow(last, live=True, session_key=self.name, kinds=CHANGE_KINDS)
        async with aclosing(events):
            async for _ in events:
                yield None

    async def press(self, keys: str) -> None:
        """Type keys into the terminal."""
        await self._desk.client.press(self.name, keys)

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        await self._desk.client.resize(self.name, columns, rows)

    async def end(self) -> None:
        """Restore the size that the terminal had before `begin`."""
        if self._before is not None:
            await self._desk.client.resize(self.name, *self._before)


class ServerTerminal:
    """The terminal of an agentapi server, which may be another program than midwatch. Its size does not change."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.name = url
        self._http = http
        self._shown = ""
        self._rows = MIN_ROWS

    async def begin(self, columns: int, rows: int) -> None:
        reply = await self._http.get(f"{self.name}/status")
        if reply.json().get("transport", "pty") != "pty":
            raise Conflict(f"the agent of {self.name} has no terminal; use the chat page {self.name}/chat.")
        self._rows = rows

    async def view(self) -> View:
        lines = self._shown.rstrip().split("\n")[-self._rows :]
        return View("\r\n".join(clean(line) for line in lines), None)

    async def changes(self) -> AsyncGenerator[None, None]:
        import json

        import httpx2

        endless = httpx2.Timeout(REPLY_SECONDS, read=None)  # a server may send nothing while the screen stays the same
        async with self._http.sse(f"{self.name}/internal/screen", max_event_size=None, timeout=endless) as source:
            async for message in source:
                self._shown = json.loads(message.data)["screen"]
                yield None
        raise Conflict(f"{self.name} has closed its terminal.")

    async def press(self, keys: str) -> None:
        reply = await self._http.post(f"{self.name}/message", json={"content": keys, "type": "raw"})
        if reply.is_error:
            raise Conflict(f"the server refused the keys: {reply.text[:200]}")

    async def resize(self, columns: int, rows: int) -> None:
        self._rows = rows

    async def end(self) -> None:
        """Do nothing, because the size of the terminal was not changed."""


@command()
def attach(session: SessionKey = None, url: Url = None) -> None:
    """Show the terminal of a session and type into it. Ctrl-] leaves; the agent continues."""
    show_terminal(session, url)


def show_terminal(session: str | None, url: str | None) -> None:
    """Show the terminal of a session, or of the agentapi server at `url`, until the user leaves."""
    if (session is None) == (url is None):
        raise InvalidInput("name either a session, or an agentapi server with --url.", field="session")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadConfig("this command needs a terminal; use `midwatch session send` to send messages to the agent.")
    farewell = asyncio.run(
        attach_to_session(session) if session is not None else attach_to_server(complete_url(url or ""))
    )
    if farewell:
        note(farewell)


def complete_url(address: str) -> str:
    """Return an address with its scheme. Add `http://` if it has none."""
    return (address if "://" in address else f"http://{address}").rstrip("/")


async def attach_to_session(key: str) -> str | None:
    """Show the terminal of a session until the user leaves. Return the message to print then, or None."""
    async with connect() as desk:
        return await Attachment(SessionTerminal(desk, key)).run()


async def attach_to_server(url: str) -> str | None:
    """Show the terminal of an agentapi server until the user leaves. Return the message to print then, or None."""
    import httpx2

    http = httpx2.AsyncClient(timeout=httpx2.Timeout(REPLY_SECONDS, connect=5.0), trust_env=False)
    try:
        return await Attachment(ServerTerminal(http, url)).run()
    except (httpx2.TransportError, ValueError) as problem:
        raise NotRunning(f"no agentapi server answers at {url} ({type(problem).__name__}); start it.") from None
    finally:
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await http.aclose()


class Attachment:
    """The connection between this terminal and the terminal of an agent."""

    def __init__(self, terminal: SessionTerminal | ServerTerminal) -> None:
        self._terminal = terminal
        self._keys: asyncio.Queue[bytes] = asyncio.Queue()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._changed = asyncio.Event()
        self._left: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def run(self) -> str | None:
        """Show the agent's terminal until it is closed or the user leaves. Return a message to print then, or None."""
        loop = asyncio.get_running_loop()
        with raw_mode():
            loop.add_reader(sys.stdin.fileno(), self._read_keys)
            loop.add_signal_handler(signal.SIGWINCH, self._keys.put_nowait, b"")
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._leave, None)
            try:
                if not await self._begin():
                    return None
                tasks = [asyncio.create_task(part) for part in (self._listen(), self._paint(), self._send_keys())]
                for task in tasks:
                    task.add_done_callback(self._handle_end)
                try:
                    return await self._left
                finally:
                    await stop(*tasks)
                    with suppress(MidwatchError):
                        await self._terminal.end()
            finally:
                loop.remove_reader(sys.stdin.fileno())

    async def _begin(self) -> bool:
        """Connect to the terminal. Return False if the user leaves before."""
        beginning: asyncio.Future[Any] = asyncio.create_task(self._terminal.begin(*available_size()))
        try:
            await asyncio.wait({beginning, self._left}, return_when=asyncio.FIRST_COMPLETED)
            if not beginning.done():
                return False
            beginning.result()
        finally:
            await stop(beginning)
        self._changed.set()
        return True

    def _leave(self, why: str | None) -> None:
        if not self._left.done():
            self._left.set_result(why)

    def _handle_end(self, part: asyncio.Task[None]) -> None:
        if part.cancelled() or self._left.done():
            return
        problem = part.exception()
        if problem is None or isinstance(problem, Conflict):
            self._leave(f"The terminal is closed. {problem or ''}".strip())
        else:
            self._left.set_exception(problem)

    def _read_keys(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        before, leave, _ = data.partition(LEAVE)
        if before:
            self._keys.put_nowait(before)
        if leave or not data:
            self._leave(None)

    async def _send_keys(self) -> None:
        """Send the typed keys in order. An empty entry in the queue means that the window was resized."""
        while True:
            pieces = [await self._keys.get()]
            while not self._keys.empty():
                pieces.append(self._keys.get_nowait())
            if b"" in pieces:
                await self._terminal.resize(*available_size())
                self._changed.set()
            for keys in split_keys(self._decoder.decode(b"".join(pieces))):
                await self._terminal.press(keys)

    async def _listen(self) -> None:
        async with aclosing(self._terminal.changes()) as changes:
            async for _ in changes:
                self._changed.set()

    async def _paint(self) -> None:
        """Draw the agent's terminal now and after each change."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            view = await self._terminal.view()
            columns, rows = available_size()
            bar = BAR.format(f"{clean(self._terminal.name)}  Ctrl-] leaves"[: columns - 2])
            cursor = f"\x1b[{view.cursor[1] + 1};{view.cursor[0] + 1}H\x1b[?25h" if view.cursor else ""
            body = view.painted.replace("\r\n", "\x1b[K\r\n")
            sys.stdout.write(f"{BEGIN_FRAME}{body}\x1b[0m\x1b[K\x1b[J\x1b[{rows + 1};1H{bar}{cursor}{END_FRAME}")
            sys.stdout.flush()


async def stop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait shortly for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=LEAVE_SECONDS)


def split_keys(keys: str) -> list[str]:
    """Split typed or pasted text into pieces that are small enough for the server."""
    return [keys[start : start + MAX_KEYS] for start in range(0, len(keys), MAX_KEYS)]


def available_size() -> tuple[int, int]:
    """Return the columns and rows for the agent's terminal. One row of the window is used for the status bar."""
    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    return min(max(columns, MIN_COLUMNS), 1000), min(max(lines - 1, MIN_ROWS), 1000)


@contextmanager
def raw_mode() -> Iterator[None]:
    """Switch this terminal to raw mode and to its alternate screen. Switch back at the end of the `with` block."""
    before = termios.tcgetattr(sys.stdin.fileno())
    sys.stdout.write(ENTER_SCREEN)
    sys.stdout.flush()
    try:
        tty.setraw(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE_SCREEN)
        sys.stdout.flush()
