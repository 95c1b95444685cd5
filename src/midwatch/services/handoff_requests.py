"""Handoff requests: a person, or the agent of a running task, creates, cancels or retries a handoff.

When a task is handed over, its prompt, its result and its conversation are handed over with it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from midwatch.base.errors import Conflict, Forbidden, HandoffError, InvalidInput
from midwatch.domain.handoff import MAX_INPUT, Handoff, HandoffFilter, HandoffTask
from midwatch.domain.handoff_history import HandoffContext, Messages
from midwatch.domain.identity import AnyActor, actor_name, agent_task
from midwatch.domain.listing import Listing
from midwatch.domain.session import PRIVATE, Message
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.services.authorization import Owner, authorize
from midwatch.services.handoffs import HandoffOptions, Handoffs
from midwatch.services.request_checks import resolve_workdir
from midwatch.services.tasks import Tasks

ROLES = {"user": "user", "agent": "assistant", "result": "assistant"}
"""The roles that models know, by the role of a message. Messages with other roles are not handed over."""
PAGE = 500
MOST_HISTORY = MAX_INPUT // 2
"""How many characters of a conversation are handed over. The oldest messages are left out."""


class HandoffRequests:
    """Service: handoffs that people or agents request. The agent of a running task may hand over only this task."""

    def __init__(self, store: Store, tasks: Tasks, handoffs: Handoffs) -> None:
        self._store = store
        self._tasks = tasks
        self._handoffs = handoffs
        self._authorization = tasks.authorization

    async def create(
        self, options: HandoffOptions, context: HandoffContext | None = None, *, actor: AnyActor = None,
        idempotency_key: str | None = None, wait: float = 0.0,
    ) -> Handoff:  # fmt: skip
        """Hand work over, wait up to `wait` seconds for the result, and return the handoff.

        A second call with the same idempotency key returns the same handoff.
        """
        authorize(actor, "submit")
        once = None if idempotency_key is None else _scope_key(actor, idempotency_key)
        options = await self._complete(replace(options, wait=False, once=once), context, actor, wait)
        handoff = await self._handoffs.handoff(options)
        if not _is_same(handoff, options):
            raise Conflict("this idempotency key was used for another handoff; choose another key.")
        return await self.get(handoff.id, actor=actor, wait=wait)

    async def _complete(
        self, options: HandoffOptions, context: HandoffContext | None, actor: AnyActor, wait: float
    ) -> HandoffOptions:
        """Return the options, with missing values taken from the actor and from the source task.

        Raise Forbidden if the actor may not hand over this work.
        """
        own, source = agent_task(actor), options.source_task
        if options.returns == "wake" and (own is None or wait):
            raise InvalidInput("only an agent that does not wait can be woken; leave out `wake`.", field="wake")
        if own is not None:
            if source not in (None, own.id):
                raise Forbidden("an agent may hand over only its own task; leave out the source task.")
            source = own.id
            await self._authorization.check_submits(own)
            if context is not None:
                context = replace(context, parent_handoff=None)  # the handoff service finds the parent itself
        elif source is not None:
            await self._authorization.check_task(actor, "manage", source)
        work, workdir = options.task, resolve_workdir(options.workdir)
        if source is not None:
            task = await self._tasks.get(source)
            work, own_context = await _build_work(self._store, task, work)
            context = context or own_context
            workdir = await self._authorization.choose_workdir(task, workdir) if own else workdir or task.workdir
        if options.to is None and not work.type:
            raise InvalidInput("name the agent that should do the work, or the type of the work.", field="to")
        return replace(
            options, task=work, from_agent=own.agent if own else options.from_agent, workdir=workdir,
            context=context or HandoffContext(), source_task=source, actor=actor_name(actor),
            awaited=own is not None and wait > 0, returns=(options.returns or "context") if own and not wait else None,
        )  # fmt: skip

    async def get(self, handoff_id: str, *, actor: AnyActor = None, wait: float = 0.0) -> Handoff:
        """Wait until a handoff has ended, but at most `wait` seconds, and return the handoff."""
        handoff = await self._handoffs.get(handoff_id)
        await self._authorization.check_handoff(actor, "read", handoff)
        if wait <= 0:
            return handoff
        own = agent_task(actor)
        with suppress(TimeoutError, HandoffError):
            async with asyncio.timeout(wait):
                await self._handoffs.wait(handoff_id, own.id if own else None)
        return await self._handoffs.get(handoff_id)

    async def list(self, which: HandoffFilter | None = None, *, actor: AnyActor = None) -> Listing[Handoff]:
        """Return the handoffs that match a filter, newest first. An agent gets only those that come from its task.

        These are the handoffs of all tasks that come from the same first task.
        """
        authorize(actor, "read")
        which, own = which or HandoffFilter(), agent_task(actor)
        if own is not None:
            root = own.root_id or own.id
            authorize(actor, "read", Owner(None, work=frozenset({which.root_id or root})))
            which = replace(which, root_id=which.root_id or root)
        return await self._handoffs.list(which)

    async def cancel(self, handoff_id: str, *, actor: AnyActor = None) -> Handoff:
        """Cancel a handoff and stop its task, also if the task runs in another process."""
        authorize(actor, "signal")
        handoff, own = await self._handoffs.get(handoff_id), agent_task(actor)
        await self._authorization.check_handoff(actor, "signal", handoff)
        name = actor_name(actor)
        why = f"cancelled by {own.agent if own else name or 'a person'}"
        return await self._handoffs.cancel(handoff_id, why=why, actor=name)

    async def retry(self, handoff_id: str, *, actor: AnyActor = None, idempotency_key: str | None = None) -> Handoff:
        """Hand the work of a handoff to the same agent again, as a new handoff, and return the new handoff.

        A second call with the same idempotency key returns the same new handoff.
        """
        authorize(actor, "manage")
        await self._authorization.check_handoff(actor, "manage", await self._handoffs.get(handoff_id))
        once = f"retry:{handoff_id}:{_scope_key(actor, idempotency_key)}" if idempotency_key else None
        return await self._handoffs.retry(handoff_id, actor=actor_name(actor), once=once)


def _scope_key(actor: AnyActor, key: str) -> str:
    """Return the idempotency key with the actor's name as a prefix, so that two actors never use the same key.

    The prefix also differs between a person and the agents that work for this person.
    """
    return f"{'agent' if agent_task(actor) else 'actor'}:{actor_name(actor)}:{key}"


def _is_same(handoff: Handoff, options: HandoffOptions) -> bool:
    """Return whether an existing handoff is for the same work, agent, timeout and retries as the options."""
    limits = options.timeout in (None, handoff.timeout) and options.max_retries == handoff.max_retries
    return limits and handoff.request == options.task.data() and options.to in (None, handoff.to_agent)


# -- the context of a handed-over task -------------------------------------------------------------------------------


async def _build_work(store: Store, task: Task, work: HandoffTask) -> tuple[HandoffTask, HandoffContext]:
    """Return the work and its context for a handoff of `task`.

    If `work` has no text, the prompt and the result of the task become the work. Otherwise the prompt and the result
    become part of the history.
    """
    origin = await store.get_handoff(task.cause_id) if task.cause == "handoff" and task.cause_id else None
    if origin is not None:
        return _build_work_again(origin, task, work)
    messages = await _read_conversation(store, task)
    own = [message for message in messages if message.task_id == task.id]
    before = [message for message in messages if message.task_id != task.id]
    key = None if task.session_key.startswith(PRIVATE) else task.session_key
    if not work.words().strip():
        work = replace(work, description=task.prompt, input=task.result, priority=work.priority or task.priority)
        return work, HandoffContext(conversation_id=key, messages=_keep_latest(before))
    if not own:
        own = [Message(session_key=task.session_key, role="user", text=task.prompt, time=task.created_at)]
        if task.result:
            own.append(Message(session_key=task.session_key, role="agent", text=task.result, time=task.created_at))
    return work, HandoffContext(conversation_id=key, messages=_keep_latest([*before, *own]))


def _build_work_again(origin: Handoff, task: Task, work: HandoffTask) -> tuple[HandoffTask, HandoffContext]:
    """Return the work and its context for a handoff of a task that was itself handed over.

    The prompt of such a task may contain the history. So the work and the history are taken from the earlier handoff,
    `origin`, where they are separate.
    """
    before = replace(origin.surroundings, parent_handoff=None)
    prompt = origin.work.words()
    if not work.words().strip():
        return replace(work, description=prompt, input=task.result, priority=work.priority or task.priority), before
    own = [{"role": "user", "content": prompt}]
    if task.result:
        own.append({"role": "assistant", "content": task.result})
    return work, replace(before, messages=(*before.messages, *own))


async def _read_conversation(store: Store, task: Task) -> list[Message]:
    """Return the messages of a task's conversation up to the last message of the task, or all if it has none."""
    messages: list[Message] = []
    while page := await store.read_messages(task.session_key, messages[-1].number if messages else 0, PAGE):
        messages += page
    last = max((at for at, message in enumerate(messages) if message.task_id == task.id), default=len(messages) - 1)
    return [message for message in messages[: last + 1] if message.role in ROLES]


def _keep_latest(messages: list[Message]) -> Messages:
    """Return the latest messages that together have at most MOST_HISTORY characters."""
    latest: list[dict[str, str]] = []
    room = MOST_HISTORY
    for message in reversed(messages):
        room -= len(message.text)
        if room < 0:
            break
        latest.append({"role": ROLES[message.role], "content": message.text})
    return tuple(reversed(latest))
