"""The session service: open and close conversations, send messages, and interrupt turns.

The record is `midwatch.domain.session`. A message to an agent becomes a task.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal

from midwatch.base.clock import Clock
from midwatch.base.errors import AlreadyFinished, Conflict, InvalidInput, KeyReused
from midwatch.base.ids import new_id
from midwatch.domain.changes import Changes
from midwatch.domain.event import SessionClosed, SessionOpened, StatusChange, event
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.requests import MAX_PROMPT, Submission
from midwatch.domain.rule import check_policy
from midwatch.domain.session import MAX_TITLE, Message, Role, Session, View, announce_message, check_key, gate_key
from midwatch.domain.steering import SEND_MODES, SendMode, SendResult
from midwatch.domain.store import Store
from midwatch.domain.task import Status, Task
from midwatch.domain.task_store import TaskFilter
from midwatch.services.authorization import authorize
from midwatch.services.records import require
from midwatch.services.request_checks import check, check_repository, resolve_workdir
from midwatch.services.tasks import Tasks

PAGE = 200
InterruptMode = Literal["abort", "stop"]
"""How a running turn is interrupted: `abort` ends it at once; `stop` asks for one final answer without tools."""


class Sessions:
    """Service: conversations."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tasks: Tasks,
        pause: Callable[[str, str | None], Awaitable[object]] | None = None,
    ) -> None:
        """Build the service. When a person interrupts the run of an automation, `pause` is called to pause it."""
        self._pause = pause
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._authorization = tasks.authorization

    async def create(
        self,
        *,
        agent: str | None = None,
        workdir: str | None = None,
        worktree: bool = False,
        title: str = "",
        key: str | None = None,
        approvals: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        actor: AnyActor = None,
    ) -> tuple[View, bool]:
        """Open a conversation with an agent. Return its session, and whether the session is new.

        If there is a session with this `key`, the same agent and the same directory, it is returned, and opened again
        if it is closed. With `worktree`, the turns of the session share a git worktree. If a request with the same
        `idempotency_key` was made before, the session of that request is returned, even if it is closed. If that
        request had other fields, KeyReused is raised. A request has a key or an idempotency key, but not both.
        """
        authorize(actor, "operate")
        now, creator = self._clock.now(), actor_name(actor)
        name = await self._tasks.check_agent(agent)
        check("-", {"workdir": workdir, "idempotency_key": idempotency_key}, 1)
        workdir = resolve_workdir(workdir)
        if idempotency_key is not None and key:
            raise InvalidInput("leave out `key` or `idempotency_key`; a request cannot have both.", field="key")
        if idempotency_key is not None:
            key = repeatable_key(creator, idempotency_key)
        key = check_key(key, "key") if key else f"chat:{new_id('s', now)}"
        if len(title) > MAX_TITLE or not (title.isprintable() or not title):
            raise InvalidInput(f"a title must have at most {MAX_TITLE} printable characters.", field="title")
        if worktree:
            check_repository(workdir)
        session = Session(
            key=key, agent=name, gate_key=gate_key(key), title=title, creator=creator, workdir=workdir,
            worktree=new_id("w", now) if worktree else None, created_at=now, updated_at=now,
            approvals=check_policy(approvals),
        )  # fmt: skip
        about = {"session_key": key, "agent_id": name, "actor": creator}
        opened = event(SessionOpened(agent=name, workdir=workdir, title=title or None), now, **about)
        idle = event(StatusChange(status="idle", agent_type=name), now, **about)
        existing = await self._store.get_session(key)
        if existing is None or existing.status == "closed":
            await self._authorization.check_session(actor, "manage", key)
        fits = existing is None or (idempotency_key is None and _has_same_place(existing, session))
        created = fits and await self._store.open_session(session, (opened, idle))
        view = await self.get(key)
        if idempotency_key is not None and _get_request(view.session) != _get_request(session):
            raise KeyReused(idempotency_key, f"session {key}")
        if not _has_same_place(view.session, session):
            raise Conflict(
                f"session {key} exists already, with agent {view.session.agent} in "
                f"{view.session.workdir or 'no directory'}; use another key."
            )
        if session.approvals not in (None, view.session.approvals):
            raise Conflict(f"session {key} exists already, with other rules in `approvals`; use another key.")
        return view, created

    async def begin(self, prompt: str | None, *, idempotency_key: str | None = None, **wish: Any) -> tuple[View, bool]:
        """Open a conversation as `create` does. If it is new, send the prompt as its first message.

        If the request is repeated, the message is not sent again.
        """
        if prompt is not None:
            check(prompt, {}, MAX_PROMPT)
        view, created = await self.create(idempotency_key=idempotency_key, **wish)
        if prompt is None or not (created or idempotency_key):
            return view, created
        once = sha256(idempotency_key.encode()).hexdigest() if idempotency_key else None
        await self.send(view.session.key, prompt, idempotency_key=once, actor=wish.get("actor"))
        return await self.get(view.session.key), created

    async def add_history(self, key: str, earlier: Iterable[tuple[Role, str, int]]) -> None:
        """Add the messages of an earlier conversation, each as role, text and time, to a new session."""
        messages = tuple(
            Message(session_key=key, role=role, text=text, time=time, id=f"{key}.{at}")
            for at, (role, text, time) in enumerate(earlier)
        )
        now = self._clock.now()
        events = tuple(announce_message(message)._replace(time=now) for message in messages)
        await self._store.apply(Changes(messages=messages, events=events))

    async def get(self, key: str, *, actor: AnyActor = None) -> View:
        """Return the session and its current activity, or raise NotFound."""
        await self._authorization.check_session(actor, "read", key)
        return require(await self._store.view_session(key), "session", key)

    async def messages(self, key: str, after: int = 0, limit: int = 500, *, actor: AnyActor = None) -> list[Message]:
        """Return the messages of a session whose number is greater than `after`, oldest first."""
        await self._authorization.check_session(actor, "read", key)
        return await self._store.read_messages(key, after, limit)

    async def send(
        self,
        key: str,
        text: str,
        *,
        mode: SendMode = "after_turn",
        priority: int = 0,
        idempotency_key: str | None = None,
        actor: AnyActor = None,
    ) -> Task:
        """Send a message, and return the task that will answer it. After the return, the message is stored.

        If a turn runs, the message waits for the next turn. With another `mode`, the message goes into the running
        turn; see `say`.
        """
        return (await self.say(key, text, mode, priority=priority, idempotency_key=idempotency_key, actor=actor)).task

    async def say(
        self,
        key: str,
        text: str,
        mode: SendMode = "after_turn",
        *,
        priority: int = 0,
        idempotency_key: str | None = None,
        actor: AnyActor = None,
    ) -> SendResult:
        """Send a message, and choose when a busy agent receives it.

        With the mode `after_turn`, the agent receives the message after the turn; with `interrupt`, before the next
        step of the turn; with `after_tool`, when the current tool has returned. If no turn runs, or the agent takes no
        messages during a turn, the message becomes a task, and the `mode` of the result is `after_turn`. Raise
        LimitReached if too many messages wait for the running turn.
        """
        if mode not in SEND_MODES:
            raise InvalidInput(f"`mode` must be one of: {', '.join(SEND_MODES)}.", field="mode")
        await self._authorization.check_session(actor, "manage", key)
        view = await self.get(key)
        if mode != "after_turn" and view.running_task is not None:
            await self._authorization.check_task(actor, "manage", view.running_task)
        session = view.session
        wish: Submission = {
            "agent": session.agent, "session_key": key, "workdir": session.workdir, "cause": "message",
            "priority": priority, "idempotency_key": idempotency_key, "origin_session": key,
        }  # fmt: skip
        try:
            if mode == "after_turn":
                return SendResult(await self._tasks.submit(text, actor=actor, **wish))
            return await self._tasks.steer(text, mode, actor=actor, **wish)
        except InvalidInput as problem:
            if problem.field != "prompt":
                raise
            raise InvalidInput(str(problem).replace("prompt", "text"), field="text") from None

    async def interrupt(
        self, key: str, mode: InterruptMode = "abort", *, hint: str | None = None, actor: AnyActor = None
    ) -> str | None:
        """Interrupt the running turn of a session. Return the id of its task, or None if no turn runs.

        The mode `abort` cancels the task. The mode `stop` asks the agent for one final answer, with `hint` as advice;
        raise Conflict if the agent takes no messages during a turn. Tasks that wait in the session run afterwards.
        """
        if mode not in ("abort", "stop"):
            raise InvalidInput("`mode` must be `abort` or `stop`.", field="mode")
        if mode == "abort" and hint:
            raise InvalidInput("`hint` needs the mode `stop`; with `abort` the agent gets no message.", field="hint")
        await self._authorization.check_session(actor, "manage", key)
        view, name = await self.get(key), actor_name(actor)
        running = view.running_task
        if running is None:
            return None
        await self._authorization.check_task(actor, "manage", running)
        if mode == "stop":
            return await self._close_turn(view.session, running, hint or "", name)
        with suppress(AlreadyFinished):
            stopped = await self._tasks.cancel(running, actor=name)
            if stopped.cause == "automation" and stopped.cause_id and self._pause is not None:
                await self._pause(stopped.cause_id, name)
            return running
        return None

    async def _close_turn(self, session: Session, task_id: str, hint: str, actor: str | None) -> str | None:
        if not await self._tasks.steerable(session.agent):
            raise Conflict(
                f"agent {session.agent} takes no messages during a turn, so it cannot be asked for a final answer; "
                f"end the turn now with `midwatch session interrupt {shlex.quote(session.key)}`."
            )
        await self._tasks.pause_goal(task_id, actor=actor)  # first, so that no further step begins
        try:
            sent = await self._tasks.stop(session.key, hint.strip(), actor=actor)
        except InvalidInput as problem:
            raise InvalidInput(str(problem).replace("prompt", "hint"), field="hint") from None
        return sent.task.id if sent else None

    async def restart(self, key: str, *, actor: AnyActor = None) -> View:
        """Stop the running turn of a session and end the agent's process, if the session has one.

        The next message starts a new process of the agent, which continues the conversation.
        """
        await self.interrupt(key, actor=actor)
        await self._store.restart_session(key)
        return await self.get(key)

    async def close(self, key: str, *, reason: str = "closed by a person", actor: AnyActor = None) -> View:
        """Close a session: it takes no more messages, and all its open tasks are cancelled.

        Closing a session again changes nothing.
        """
        await self._authorization.check_session(actor, "manage", key)
        session = (await self.get(key)).session
        open_tasks = TaskFilter(statuses=("running", "pending"), session_key=key, limit=PAGE)
        await self._authorization.check_tasks(actor, "manage", await self._store.list_tasks(open_tasks))
        now, name = self._clock.now(), actor_name(actor)
        about = {"session_key": key, "agent_id": session.agent, "actor": name}
        closed = event(SessionClosed(reason=reason), now, **about)
        status = event(StatusChange(status="closed", agent_type=session.agent), now, **about)
        await self._store.close_session(key, now, (closed, status))
        await self._cancel_all(key, "pending", name)  # first, so that none of them begins when the running task ends
        await self._cancel_all(key, "running", name)
        await self._cancel_all(key, "pending", name)  # messages that a turn left when it ended meanwhile
        return await self.get(key)

    async def _cancel_all(self, key: str, status: Status, actor: str | None) -> None:
        which = TaskFilter(statuses=(status,), session_key=key, limit=PAGE)
        while True:
            tasks = await self._store.list_tasks(which)
            for task in tasks:
                with suppress(AlreadyFinished):
                    await self._tasks.cancel(task.id, actor=actor)
            if tasks.next is None:
                return
            which = replace(which, before=tasks.next)

    async def list(self, limit: int = 50, before: str | None = None, *, actor: AnyActor = None) -> list[View]:
        """Return at most `limit` sessions, the most recently used first."""
        authorize(actor, "oversee")
        return await self._store.list_sessions(limit, before)


def repeatable_key(actor: str | None, idempotency_key: str) -> str:
    """Return a session key computed from actor and idempotency key, so that a repeated request finds its session."""
    pair = f"{actor or ''}\0{idempotency_key}"  # no part contains a NUL, so each pair has a key of its own
    return f"chat:k_{sha256(pair.encode()).hexdigest()[:32]}"


def _get_request(session: Session) -> tuple[object, ...]:
    """Return the fields of a session that two requests with the same idempotency key must have in common."""
    place = (session.agent, session.workdir, session.worktree is None)
    return (session.creator, *place, session.title, session.approvals)


def _has_same_place(session: Session, other: Session) -> bool:
    """Return whether two sessions have the same agent and directory, and both or neither have a worktree."""
    same = (session.agent, session.workdir) == (other.agent, other.workdir)
    return same and (session.worktree is None) == (other.worktree is None)
