"""Command `chat`: a conversation in the terminal. Each typed line is a message; answers are printed as they arrive."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Annotated, Any, cast

from midwatch.base.errors import Conflict, MidwatchError, NotFound
from midwatch.cli.command import command
from midwatch.cli.connection import Desk
from midwatch.cli.inputs import absolute_path
from midwatch.cli.options import AgentName, AsJson, Workdir, Worktree
from midwatch.cli.output import clean, emit, note, paint, say
from midwatch.cli.parameters import Argument
from midwatch.cli.questions import Questions, read_lines
from midwatch.cli.sessions import SessionTitle, describe_message, read_messages
from midwatch.cli.watch import INTERRUPTED, STOP_SECONDS, Watch, start_tasks

if TYPE_CHECKING:
    from midwatch.client import Client
    from midwatch.domain.steering import SendMode
    from midwatch.wire.events import EventInfo
    from midwatch.wire.sessions import SessionInfo
    from midwatch.wire.tasks import TaskInfo

MESSAGES_SHOWN = 10
HIDDEN = ("task_submitted", "task_started", "task_finished")
QUIT = ("/quit", "/exit")
MODES: Mapping[str, SendMode] = {"/now": "interrupt", "/then": "after_tool"}
"""The mode of a message to the running turn, by the first word of the typed line."""
HEARD = {
    "after_turn": "The message is queued.",
    "interrupt": "The agent gets the message at its next step.",
    "after_tool": "The agent gets the message when its tool has returned.",
}
"""The text that tells when the agent gets a message, by mode."""


@command(work=True)
async def chat(
    desk: Desk,
    key: Annotated[str | None, Argument(metavar="KEY", help="Session to continue. Default: a new session.")] = None,
    agent: AgentName = None,
    workdir: Workdir = ".",
    worktree: Worktree = False,
    title: SessionTitle = None,
    as_json: AsJson = False,
) -> int:
    """Talk to an agent. Ctrl-C stops its answer; Ctrl-C again, Ctrl-D or /quit leaves.

    While the agent works, messages are queued. With /now TEXT the agent gets the message at its next step, with
    /then TEXT when its tool has returned. /stop asks the agent for a final answer.

    Without a server the agent works in this process.
    """
    session = await open_session(desk.client, key, agent, workdir, title, worktree)
    return await Chat(desk, session, as_json).run()


async def open_session(
    client: Client, key: str | None, agent: str | None, workdir: str, title: str | None, worktree: bool
) -> SessionInfo:
    """Return the session with this key; open it if it is closed or missing. Without a key, return a new session."""
    session = None
    if key is not None:
        with suppress(NotFound):
            session = await client.session(key)
    if session is None:
        return await client.create_session(
            agent=agent, workdir=absolute_path(workdir), worktree=worktree, title=title, key=key
        )
    if session["status"] == "closed" or agent not in (None, session["agent"]):
        return await client.create_session(
            agent=agent or session["agent"],
            workdir=session["workdir"],
            worktree=session["worktree"] is not None,
            key=key,
        )
    return session


class Chat:
    """A conversation of the user at this terminal with an agent."""

    def __init__(self, desk: Desk, session: SessionInfo, as_json: bool) -> None:
        self._desk = desk
        self._session = session
        self._key = session["key"]
        self._json = as_json
        self._interactive = sys.stdin is not None and sys.stdin.isatty() and not as_json
        self._watch = Watch(quiet=as_json)
        self._questions = Questions(desk.client, self._watch.tell)
        self._running = session["running_task"]
        self._stopping: str | None = None
        self._open: set[str] = set()
        self._ended: dict[str, str] = {}
        """Status of each ended task. A task may end before this chat gets the reply to its message."""
        self._steers: set[str] = set()
        """Ids of messages that the running turn has not received yet."""
        self._sent: set[str] = set()
        self._sending = ""
        self._progress = asyncio.Event()
        self._left: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Run the chat until the user leaves. Return the exit status."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._leave, INTERRUPTED)
        position = (await self._desk.client.events(limit=0))["last_seq"]
        await self._welcome()
        async with start_tasks(self._listen(position), self._send_lines()) as parts:
            await asyncio.wait({*parts, self._left}, return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                if part.done():
                    part.result()
            if self._desk.runtime is not None:
                await self._cancel_open()
        if self._open or self._running:
            note(f"The agent continues; come back with `midwatch chat {shlex.quote(self._key)}`.")
        return self._left.result()

    async def _welcome(self) -> None:
        if self._json:
            emit(self._session)
            sys.stdout.flush()
            return
        where = f" in {self._session['workdir']}" if self._session["workdir"] else ""
        note(f"{self._key} with {self._session['agent']}{where}. Ctrl-C stops an answer, Ctrl-D leaves.")
        if self._interactive:
            for message in (await read_messages(self._desk.client, self._key))[-MESSAGES_SHOWN:]:
                say(describe_message(message))
        if self._session["status"] == "asking":
            for approval in await self._desk.client.approvals():
                if approval["session_key"] == self._key:
                    await self._questions.ask(approval["id"], approval)
        elif self._running:
            note(f"The agent works on {self._running}; your messages are queued.")
        self._show_prompt()

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _send_lines(self) -> None:
        """Send the typed lines, and leave at the end of the input. For a file or a pipe, first wait for all answers."""
        async with aclosing(read_lines()) as typed:
            async for text in typed:
                if self._interactive and text.strip() in QUIT:
                    break
                try:
                    await self._send(text)
                except MidwatchError as error:
                    if not self._interactive:
                        raise
                    note(f"midwatch: {error}")
        while not self._interactive and (self._open or self._steers):
            await self._wait_for_progress()
        failed = any(status != "done" for status in self._ended.values())
        self._leave(1 if failed and not self._interactive else 0)

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    async def _send(self, text: str) -> None:
        if await self._questions.answer(text):
            return
        word, _, rest = text.partition(" ")
        if word == "/stop" and self._running:
            await self._desk.client.interrupt(self._key, "stop", hint=rest.strip() or None)
            return
        mode = MODES.get(word) if rest.strip() else None
        busy = bool(self._open or self._running)
        self._sending = rest.strip() if mode else text
        task = await self._desk.client.send(self._key, self._sending, mode=mode)
        self._sending = ""
        if (steer := task["steer"]) is not None:
            self._sent.add(steer["id"])
        if task["id"] not in self._ended:
            self._open.add(task["id"])
            if steer is not None:
                self._steers.add(steer["id"])
        if busy and not self._json:
            note(paint(HEARD[task["mode"]], "dim", sys.stderr))

    def _interrupt(self) -> None:
        """Stop the running task. Leave the chat if no task runs or the task is being stopped already."""
        if self._running is None or self._stopping == self._running:
            self._leave(INTERRUPTED)
            return
        self._stopping = self._running
        note("\nStopping the answer; Ctrl-C again leaves.")
        asyncio.ensure_future(self._desk.client.interrupt(self._key)).add_done_callback(report_failure)

    def _leave(self, status: int) -> None:
        if not self._left.done():
            self._left.set_result(status)

    async def _cancel_open(self) -> None:
        """Cancel the open tasks of this chat, because they run in this process and no other process continues them."""
        for task_id in tuple(self._open):
            with suppress(Conflict):
                await self._desk.client.cancel(task_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while self._open:
                    await self._wait_for_progress()

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def _listen(self, position: int) -> None:
        async with aclosing(self._desk.follow(position, session_key=self._key, live=True)) as events:
            async for event in events:
                if self._json:
                    emit(event)
                    sys.stdout.flush()
                await self._handle(event)

    async def _handle(self, event: EventInfo) -> None:
        kind, payload, task_id = event["kind"], event["payload"], event.get("task_id")
        if kind == "task_started":
            self._running = task_id
        elif kind == "task_submitted" and task_id in self._steers:
            self._steers.remove(task_id)  # the turn has ended without this message
            self._open.add(task_id)
        elif kind == "steering_injected":
            self._steers.difference_update(payload["steer_ids"])
        elif kind == "approval_requested" and payload["rule"] is None:
            await self._questions.ask(payload["approval_id"], payload)
        elif kind == "approval_resolved":
            self._questions.forget(payload["approval_id"])
        elif kind == "message_update" and payload["role"] == "user":
            self._show_other(event, payload["message"])
        elif kind not in HIDDEN:
            self._watch.show(event)
        if kind in ("task_finished", "task_interrupted") and task_id == self._running:
            self._running = None
        if kind == "task_finished" and task_id:
            self._finish(task_id, payload)
        elif kind == "session_closed":
            self._leave(0)

    def _finish(self, task_id: str, payload: dict[str, Any]) -> None:
        self._ended[task_id] = payload["status"]
        if not self._json:
            self._watch.end(cast("TaskInfo", {"id": task_id, "tokens_used": None, **payload}), chatting=True)
        self._open.discard(task_id)
        self._progress.set()
        self._show_prompt()

    def _show_other(self, event: EventInfo, text: str) -> None:
        """Show a message, if it was sent to this session from elsewhere."""
        own = {*self._open, *self._ended, *self._sent}
        if event["payload"]["message_id"] not in own and text != self._sending and not self._json:
            note(paint(clean(f"{event.get('actor') or 'somebody'} says: {text}"), "dim", sys.stderr))

    def _show_prompt(self) -> None:
        if self._interactive and not self._open and not self._left.done():
            sys.stderr.write("> ")
            sys.stderr.flush()


def report_failure(request: asyncio.Future[Any]) -> None:
    """Print the error if the request to interrupt the turn has failed."""
    if not request.cancelled() and request.exception() is not None:
        note(f"midwatch: {request.exception()}")
