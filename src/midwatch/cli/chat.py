"""Command `chat`: a conversation in the terminal. What is typed is sent, answers are written as they come."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from midwatch.base.errors import Conflict, MidwatchError, NotFound
from midwatch.cli.connection import Desk, connect, run
from midwatch.cli.options import AgentName, AsJson, Workdir, Worktree
from midwatch.cli.output import clean, emit, note, paint
from midwatch.cli.sessions import Title, absolute, said, written
from midwatch.cli.watch import Watch

if TYPE_CHECKING:
    from midwatch.client import Client
    from midwatch.domain.steering import SendMode
    from midwatch.wire.approvals import ChoiceInfo
    from midwatch.wire.events import EventInfo
    from midwatch.wire.sessions import SessionInfo
    from midwatch.wire.tasks import TaskInfo

INTERRUPTED = 130
MESSAGES_SHOWN = 10
STOP_SECONDS = 20.0
"""How long somebody who leaves waits for an agent of this process to end."""
UNSPOKEN = ("task_submitted", "task_started", "task_finished")
LEAVES = ("/quit", "/exit")
MODES: Mapping[str, SendMode] = {"/now": "interrupt", "/then": "after_tool"}
"""What a line begins with that is for the running turn."""
WHEN = {
    "after_turn": "It waits for its turn.",
    "interrupt": "It is heard at the next step.",
    "after_tool": "It is heard when the tool has returned.",
}


def chat(
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="Session to go on with. Default: a new one.")] = None,
    agent: AgentName = None,
    workdir: Workdir = ".",
    worktree: Worktree = False,
    title: Title = None,
    as_json: AsJson = False,
) -> None:
    """Talk to an agent. Ctrl-C stops its answer; once more, Ctrl-D or /quit leaves.

    While it works, what you type waits for its turn; /now TEXT is heard at its next step, /then TEXT when its tool has
    returned, and /stop has it close with one answer.

    Without a server the agent works in this process.
    """

    async def act() -> int:
        async with connect(work=True) as desk:
            session = await opened(desk.client, key, agent, workdir, title, worktree)
            return await Chat(desk, session, as_json).converse()

    raise typer.Exit(run(act()))


async def opened(
    client: Client, key: str | None, agent: str | None, workdir: str, title: str | None, worktree: bool = False
) -> SessionInfo:
    """The session with that key as it is, open again if it was closed, or a new one."""
    found = None
    if key is not None:
        with suppress(NotFound):
            found = await client.session(key)
    if found is None:
        return await client.create_session(
            agent=agent, workdir=absolute(workdir), worktree=worktree, title=title, key=key
        )
    if found["status"] == "closed" or agent not in (None, found["agent"]):
        apart = found["worktree"] is not None
        return await client.create_session(
            agent=agent or found["agent"], workdir=found["workdir"], worktree=apart, key=key
        )
    return found


class Chat:
    """One person's side of a conversation, from when they come until they leave."""

    def __init__(self, desk: Desk, session: SessionInfo, as_json: bool) -> None:
        self._desk = desk
        self._session = session
        self._key = session["key"]
        self._json = as_json
        self._typed = sys.stdin is not None and sys.stdin.isatty() and not as_json
        self._watch = Watch(quiet=as_json)
        self._running = session["running_task"]
        self._stopping: str | None = None
        self._question: tuple[str, list[str]] | None = None
        self._open: set[str] = set()
        self._ended: dict[str, str] = {}
        """Tasks that were seen to end, and how: one may end before the reply to its message is here."""
        self._steers: set[str] = set()
        """Messages that the running turn has not taken yet."""
        self._said: set[str] = set()
        self._saying = ""
        self._news = asyncio.Event()
        self._left: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def converse(self) -> int:
        """Talk until somebody leaves. Returns the exit status."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop)
        loop.add_signal_handler(signal.SIGTERM, self._leave, INTERRUPTED)
        position = (await self._desk.client.events(limit=0))["last_seq"]
        await self._welcome()
        parts: set[asyncio.Future[Any]] = {
            asyncio.create_task(self._listen(position)),
            asyncio.create_task(self._speak()),
        }
        try:
            await asyncio.wait({*parts, self._left}, return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                if part.done():
                    part.result()
            if self._desk.runtime is not None:
                await self._drop()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        if self._open or self._running:
            note(f"It goes on; come back with `midwatch chat '{self._key}'`.")
        return self._left.result()

    async def _welcome(self) -> None:
        if self._json:
            emit(self._session)
            sys.stdout.flush()
            return
        where = f" in {self._session['workdir']}" if self._session["workdir"] else ""
        note(f"{self._key} with {self._session['agent']}{where}. Ctrl-C stops an answer, Ctrl-D leaves.")
        if self._typed:
            for message in (await said(self._desk.client, self._key))[-MESSAGES_SHOWN:]:
                written(message)
        if self._session["status"] == "asking":
            for asked in await self._desk.client.approvals():
                if asked["session_key"] == self._key:
                    self._ask(asked["id"], asked["question"], asked["choices"])
        elif self._running:
            note(f"It works on {self._running}; what you say waits for its turn.")
        self._prompt()

    # -- what is said here -----------------------------------------------------------------------------------------

    async def _speak(self) -> None:
        """Send what is typed. At the end of a file or pipe the answers are waited for; a person simply leaves."""
        async with aclosing(lines()) as typed:
            async for text in typed:
                if self._typed and text.strip() in LEAVES:
                    break
                try:
                    await self._say(text)
                except MidwatchError as error:
                    if not self._typed:
                        raise
                    note(f"midwatch: {error}")
        while not self._typed and (self._open or self._steers):
            self._news.clear()
            await self._news.wait()
        unanswered = [task_id for task_id, status in self._ended.items() if status != "done"]
        self._leave(1 if unanswered and not self._typed else 0)

    async def _say(self, text: str) -> None:
        if self._question and text in self._question[1]:
            await self._desk.client.approve(self._question[0], choice=text)
            return
        command, _, rest = text.partition(" ")
        if command == "/stop" and self._running:
            await self._desk.client.interrupt(self._key, "stop", hint=rest.strip() or None)
            return
        mode = MODES.get(command) if rest.strip() else None
        busy = bool(self._open or self._running)
        self._saying = rest.strip() if mode else text
        sent = await self._desk.client.send(self._key, self._saying, mode=mode)
        self._saying = ""
        if (steer := sent["steer"]) is not None:
            self._said.add(steer["id"])
            if sent["id"] not in self._ended:
                self._steers.add(steer["id"])
        if sent["id"] not in self._ended:
            self._open.add(sent["id"])
        if busy and not self._json:
            note(paint(WHEN[sent["mode"]], "dim", sys.stderr))

    def _stop(self) -> None:
        """Ctrl-C: stop the answer; once more, or when there is none, leave."""
        if self._running is None or self._stopping == self._running:
            self._leave(INTERRUPTED)
            return
        self._stopping = self._running
        note("\nStopping it; Ctrl-C again leaves.")
        asyncio.ensure_future(self._desk.client.interrupt(self._key)).add_done_callback(failure_told)

    def _leave(self, status: int) -> None:
        if not self._left.done():
            self._left.set_result(status)

    async def _drop(self) -> None:
        """Stop what was asked here and runs in this process: nobody would go on with it."""
        for task_id in tuple(self._open):
            with suppress(Conflict):
                await self._desk.client.cancel(task_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while self._open:
                    self._news.clear()
                    await self._news.wait()

    # -- what is heard ---------------------------------------------------------------------------------------------

    async def _listen(self, position: int) -> None:
        async with aclosing(self._desk.follow(position, session_key=self._key, live=True)) as events:
            async for event in events:
                if self._json:
                    emit(event)
                    sys.stdout.flush()
                self._heard(event)

    def _heard(self, event: EventInfo) -> None:
        told, task_id = event["payload"], event.get("task_id")
        if event["kind"] == "task_started":
            self._running = task_id
        elif event["kind"] == "task_submitted" and task_id in self._steers:
            self._steers.remove(task_id)  # the turn has ended without it
            self._open.add(task_id)
        elif event["kind"] == "steering_injected":
            self._steers.difference_update(told["steer_ids"])
        elif event["kind"] == "approval_requested" and told["rule"] is None:
            self._ask(told["approval_id"], told["question"], told["choices"])
        elif event["kind"] == "approval_resolved":
            self._question = None
        elif event["kind"] == "message_update" and told["role"] == "user":
            self._overheard(event, told["message"])
        elif event["kind"] not in UNSPOKEN:
            self._watch.show(event)
        if event["kind"] in ("task_finished", "task_interrupted") and task_id == self._running:
            self._running = None
        if event["kind"] == "task_finished" and task_id:
            self._finished(task_id, told)
        elif event["kind"] == "session_closed":
            self._leave(0)

    def _finished(self, task_id: str, told: dict[str, Any]) -> None:
        self._ended[task_id] = told["status"]
        if not self._json:
            self._watch.end(cast("TaskInfo", {"id": task_id, "tokens_used": None, **told}), chatting=True)
        self._open.discard(task_id)
        self._news.set()
        self._prompt()

    def _overheard(self, event: EventInfo, text: str) -> None:
        """Somebody else speaks here, too."""
        own = {*self._open, *self._ended, *self._said}
        if event["payload"]["message_id"] not in own and text != self._saying and not self._json:
            note(paint(clean(f"{event.get('actor') or 'somebody'} says: {text}"), "dim", sys.stderr))

    def _ask(self, approval_id: str, question: str, choices: Sequence[ChoiceInfo]) -> None:
        self._question = approval_id, [one["name"] for one in choices]
        if not self._json:
            once = " or ".join(one["name"] for one in choices if one["kind"].endswith("once"))
            note(f"? {clean(question)} Type {clean(once)}.")

    def _prompt(self) -> None:
        if self._typed and not self._open and not self._left.done():
            sys.stderr.write("> ")
            sys.stderr.flush()


def failure_told(asked: asyncio.Future[Any]) -> None:
    """Say why an interruption did not work."""
    if not asked.cancelled() and asked.exception() is not None:
        note(f"midwatch: {asked.exception()}")


async def lines() -> AsyncGenerator[str, None]:
    """What is typed, or piped in, line by line without blank ones; after a backslash the next line belongs to it. It is
    read on a thread that nobody waits for, since a person may never type again."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        with suppress(OSError, RuntimeError):  # the terminal is gone, or the loop is
            while chunk := os.read(0, 65536):
                loop.call_soon_threadsafe(typed.put_nowait, chunk)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(typed.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    rest, begun, ended = b"", "", False
    while not ended:
        chunk = await typed.get()
        ended = not chunk
        *whole, rest = (rest + (chunk or b"\n")).split(b"\n")
        for one in whole:
            text = one.decode("utf-8", "replace").rstrip("\r")
            if text.endswith("\\"):
                begun += text[:-1] + "\n"
            elif (begun + text).strip():
                yield (begun + text).strip()
                begun = ""
