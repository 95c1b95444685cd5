"""Handing a task over: what of it, and of its conversation, becomes a handoff when somebody else asks for that."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from midwatch.domain.handoff import MAX_INPUT, Handoff, HandoffTask
from midwatch.domain.handoff_history import HandoffContext, Messages
from midwatch.domain.session import PRIVATE, Message
from midwatch.domain.task import Task

ROLES = {"user": "user", "agent": "assistant", "result": "assistant"}
"""Who said it, as models know it. Notices are for people and stay behind."""
PAGE = 500
MOST_TOLD = MAX_INPUT // 2
"""Characters of a conversation that go along; what was said first stays behind."""


class MessageStore(Protocol):
    """What this needs of the store."""

    async def get_handoff(self, handoff_id: str) -> Handoff | None:
        """The handoff, or None."""
        ...

    async def read_messages(self, key: str, after: int = 0, limit: int = PAGE) -> list[Message]:
        """The session's messages with number > `after`, in order."""
        ...


async def from_task(store: MessageStore, task: Task, said: HandoffTask) -> tuple[HandoffTask, HandoffContext]:
    """The work and what goes along when `task` is handed over. Without words of its own the work is the task's prompt
    and, where it has one, its result; otherwise these are history. Nothing goes along twice."""
    given = await store.get_handoff(task.cause_id) if task.cause == "handoff" and task.cause_id else None
    if given is not None:
        return _passed_on(given, task, said)
    told = await _conversation(store, task)
    own = [one for one in told if one.task_id == task.id]
    before = [one for one in told if one.task_id != task.id]
    key = None if task.session_key.startswith(PRIVATE) else task.session_key
    if not said.words().strip():
        work = replace(said, description=task.prompt, input=task.result, priority=said.priority or task.priority)
        return work, HandoffContext(conversation_id=key, messages=_latest(before))
    if not own:
        own = [Message(session_key=task.session_key, role="user", text=task.prompt, time=task.created_at)]
        if task.result:
            own.append(Message(session_key=task.session_key, role="agent", text=task.result, time=task.created_at))
    return said, HandoffContext(conversation_id=key, messages=_latest([*before, *own]))


def _passed_on(given: Handoff, task: Task, said: HandoffTask) -> tuple[HandoffTask, HandoffContext]:
    """The same for a task that was handed over itself: its prompt may hold its history as text, the record has both."""
    before = replace(given.surroundings, parent_handoff=None)
    prompt = given.work.words()
    if not said.words().strip():
        return replace(said, description=prompt, input=task.result, priority=said.priority or task.priority), before
    own = [{"role": "user", "content": prompt}]
    if task.result:
        own.append({"role": "assistant", "content": task.result})
    return said, replace(before, messages=(*before.messages, *own))


async def _conversation(store: MessageStore, task: Task) -> list[Message]:
    """What was said until the task ended, or until now."""
    found: list[Message] = []
    while page := await store.read_messages(task.session_key, found[-1].number if found else 0, PAGE):
        found += page
    last = max((at for at, one in enumerate(found) if one.task_id == task.id), default=len(found) - 1)
    return [one for one in found[: last + 1] if one.role in ROLES]


def _latest(told: list[Message]) -> Messages:
    """The last of them that fit."""
    kept: list[dict[str, str]] = []
    room = MOST_TOLD
    for one in reversed(told):
        room -= len(one.text)
        if room < 0:
            break
        kept.append({"role": ROLES[one.role], "content": one.text})
    return tuple(reversed(kept))
