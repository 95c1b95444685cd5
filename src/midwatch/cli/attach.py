"""Command `attach`: a session's terminal in one's own. What is typed goes to the agent, also Ctrl-C; Ctrl-] leaves."""

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
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import typer

from midwatch.base.errors import BadConfig, Conflict, InvalidInput, MidwatchError, NotRunning
from midwatch.cli.connection import PATIENCE_SECONDS, Desk, connect, run
from midwatch.cli.output import clean, note

if TYPE_CHECKING:
    import httpx2

LEAVE = b"\x1d"
BAR = "\x1b[7m {} \x1b[0m"
LEAST_COLUMNS, LEAST_ROWS = 20, 10
CHANGES = ("screen_update", "agent_exited", "session_closed")
IN, OUT = "\x1b[?1049h\x1b[2J", "\x1b[0m\x1b[?25h\x1b[?1049l"
TOGETHER, APART = "\x1b[?2026h\x1b[?25l\x1b[0m\x1b[H", "\x1b[?2026l"
QUIET_SECONDS = 60.0
MOST_KEYS = 50_000

SessionKey = Annotated[str | None, typer.Argument(metavar="SESSION", help="Key of a session with a terminal.")]
Url = Annotated[str | None, typer.Option("--url", "-u", help="Address of an agentapi server, in place of a session.")]


class View(NamedTuple):
    """What is to be painted: rows as they are written to a terminal, and where the cursor is."""

    painted: str
    cursor: tuple[int, int] | None


class Far(Protocol):
    """The terminal at the other end."""

    name: str

    async def begin(self, columns: int, rows: int) -> None:
        """Have it open, in this size."""
        ...

    async def view(self) -> View:
        """What it shows; Conflict when it is closed."""
        ...

    def changes(self) -> AsyncGenerator[None, None]:
        """Something each time it shows something else, and when that begins to be told: it may have changed before."""
        ...

    async def press(self, keys: str) -> None:
        """Type."""
        ...

    async def resize(self, columns: int, rows: int) -> None:
        """Give it another size."""
        ...

    async def end(self) -> None:
        """Leave it as it was found."""
        ...


class OfSession:
    """A session of this desk, wherever its agent works."""

    def __init__(self, desk: Desk, key: str) -> None:
        self.name = key
        self._desk = desk
        self._before: tuple[int, int] | None = None

    async def begin(self, columns: int, rows: int) -> None:
        client = self._desk.client
        try:
            found = await client.screen(self.name)
        except Conflict:
            found = await client.open_terminal(self.name)
        self._before = found["columns"], found["rows"]
        await client.resize(self.name, columns, rows)

    async def view(self) -> View:
        found = await self._desk.client.screen(self.name, styled=True)
        return View(found["styled"], (found["cursor"][0], found["cursor"][1]))

    async def changes(self) -> AsyncGenerator[None, None]:
        news: AsyncGenerator[Any, None]
        if self._desk.runtime is None:
            news = self._desk.client.watch_session(self.name, kinds=CHANGES, patience=PATIENCE_SECONDS)
        else:
            last = (await self._desk.client.events(limit=0))["last_seq"]
            news = self._desk.follow(last, live=True, session_key=self.name, kinds=CHANGES)
        async with aclosing(news) as told:
            async for _ in told:
                yield None

    async def press(self, keys: str) -> None:
        await self._desk.client.press(self.name, keys)

    async def resize(self, columns: int, rows: int) -> None:
        await self._desk.client.resize(self.name, columns, rows)

    async def end(self) -> None:
        if self._before is not None:
            await self._desk.client.resize(self.name, *self._before)


class OfServer:
    """An agentapi server, of midwatch or not. Its terminal keeps its size."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.name = url
        self._http = http
        self._shown = ""
        self._rows = LEAST_ROWS

    async def begin(self, columns: int, rows: int) -> None:
        reply = await self._http.get(f"{self.name}/status")
        if reply.json().get("transport", "pty") != "pty":
            raise Conflict(f"the agent of {self.name} has no terminal.")
        self._rows = rows

    async def view(self) -> View:
        lines = self._shown.rstrip().split("\n")[-self._rows :]
        return View("\r\n".join(clean(line) for line in lines), None)

    async def changes(self) -> AsyncGenerator[None, None]:
        import json

        async with self._http.sse(f"{self.name}/internal/screen", max_event_size=None) as source:
            async for message in source:
                self._shown = json.loads(message.data)["screen"]
                yield None
        raise Conflict(f"{self.name} has closed its terminal.")

    async def press(self, keys: str) -> None:
        reply = await self._http.post(f"{self.name}/message", json={"content": keys, "type": "raw"})
        if reply.is_error:
            raise Conflict(f"the keys were not taken: {reply.text[:200]}")

    async def resize(self, columns: int, rows: int) -> None:
        self._rows = rows

    async def end(self) -> None:
        """It was not changed."""


def attach(session: SessionKey = None, url: Url = None) -> None:
    """Show the terminal of a session in this one and type into it. Ctrl-] leaves; the agent goes on."""
    if (session is None) == (url is None):
        raise InvalidInput("name a session, or an agentapi server with --url.", field="session")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadConfig("attach needs a terminal; use `midwatch session send` to speak to the agent.")
    told = run(_of_session(session) if session is not None else _of_server(address(url or "")))
    if told:
        note(told)


def address(url: str) -> str:
    """An address as people write it."""
    return (url if "://" in url else f"http://{url}").rstrip("/")


async def _of_session(key: str) -> str | None:
    async with connect() as desk:
        return await Attached(OfSession(desk, key)).stay()


async def _of_server(url: str) -> str | None:
    import httpx2

    timeout = httpx2.Timeout(30.0, connect=5.0, read=QUIET_SECONDS)
    async with httpx2.AsyncClient(timeout=timeout, trust_env=False) as http:
        try:
            return await Attached(OfServer(http, url)).stay()
        except (httpx2.TransportError, ValueError) as problem:
            raise NotRunning(f"no agentapi server answers at {url}: {type(problem).__name__}; start one.") from None


class Attached:
    """One person at a terminal, from when they come until they leave."""

    def __init__(self, far: Far) -> None:
        self._far = far
        self._keys: asyncio.Queue[bytes] = asyncio.Queue()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._news = asyncio.Event()
        self._left: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    async def stay(self) -> str | None:
        """Until somebody leaves, or the terminal is closed; what there is to say then."""
        await self._far.begin(*size())
        self._news.set()
        loop = asyncio.get_running_loop()
        with raw():
            loop.add_reader(sys.stdin.fileno(), self._typed)
            loop.add_signal_handler(signal.SIGWINCH, self._keys.put_nowait, b"")
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, self._leave, None)
            tasks = [asyncio.create_task(part()) for part in (self._listen, self._paint, self._type)]
            for part in tasks:
                part.add_done_callback(self._ended)
            try:
                return await self._left
            finally:
                loop.remove_reader(sys.stdin.fileno())
                for part in tasks:
                    part.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                with suppress(MidwatchError):
                    await self._far.end()

    def _leave(self, why: str | None) -> None:
        if not self._left.done():
            self._left.set_result(why)

    def _ended(self, part: asyncio.Task[None]) -> None:
        if part.cancelled() or self._left.done():
            return
        problem = part.exception()
        if problem is None or isinstance(problem, Conflict):
            self._leave(f"The terminal is closed. {problem or ''}".strip())
        else:
            self._left.set_exception(problem)

    def _typed(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        before, leave, _ = data.partition(LEAVE)
        if before:
            self._keys.put_nowait(before)
        if leave or not data:
            self._leave(None)

    async def _type(self) -> None:
        """Pass on what was typed, in order; an empty piece means that the window has another size."""
        while True:
            pieces = [await self._keys.get()]
            while not self._keys.empty():
                pieces.append(self._keys.get_nowait())
            if b"" in pieces:
                await self._far.resize(*size())
                self._news.set()
            for keys in parts(self._decoder.decode(b"".join(pieces))):
                await self._far.press(keys)

    async def _listen(self) -> None:
        async with aclosing(self._far.changes()) as changes:
            async for _ in changes:
                self._news.set()

    async def _paint(self) -> None:
        """Paint what is shown, and again after each change; what changes meanwhile is painted at once."""
        while True:
            await self._news.wait()
            self._news.clear()
            view = await self._far.view()
            columns, rows = size()
            bar = BAR.format(f"{clean(self._far.name)}  Ctrl-] leaves"[: columns - 2])
            place = f"\x1b[{view.cursor[1] + 1};{view.cursor[0] + 1}H\x1b[?25h" if view.cursor else ""
            body = view.painted.replace("\r\n", "\x1b[K\r\n")
            sys.stdout.write(f"{TOGETHER}{body}\x1b[0m\x1b[K\x1b[J\x1b[{rows + 1};1H{bar}{place}{APART}")
            sys.stdout.flush()


def parts(keys: str) -> list[str]:
    """What was typed or pasted, in pieces that a server takes."""
    return [keys[start : start + MOST_KEYS] for start in range(0, len(keys), MOST_KEYS)]


def size() -> tuple[int, int]:
    """Columns and rows there are for the far terminal: one row is ours."""
    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    return min(max(columns, LEAST_COLUMNS), 1000), min(max(lines - 1, LEAST_ROWS), 1000)


@contextmanager
def raw() -> Iterator[None]:
    """The terminal as it gives every key, on its other screen; in the end as it was."""
    before = termios.tcgetattr(sys.stdin.fileno())
    sys.stdout.write(IN)
    sys.stdout.flush()
    try:
        tty.setraw(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        sys.stdout.write(OUT)
        sys.stdout.flush()
