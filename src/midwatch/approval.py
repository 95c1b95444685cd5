"""Approvals: questions an agent asks before it acts. They wait in one inbox until somebody answers or time is up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from midwatch.agent import Question
from midwatch.change import Changes, Fence, Update
from midwatch.channel import cut
from midwatch.clock import SECOND, Clock, iso, new_id
from midwatch.errors import Conflict, InvalidInput, NotFound
from midwatch.event import ApprovalRequested, ApprovalResolved, TaskWaiting, event
from midwatch.task import Task, TaskStore, meta, notices

Status = Literal["pending", "granted", "denied", "expired"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "pending": frozenset({"granted", "denied", "expired"}),
    "granted": frozenset(),
    "denied": frozenset(),
    "expired": frozenset(),
}
EXPIRES_SECONDS = 12 * 3600.0
QUESTION_SHOWN = 500
MAX_CHOICES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One question. The first choice is the yes; any other is a no."""

    noun: ClassVar[str] = "approval"

    id: str
    task_id: str
    attempt: int
    session_key: str
    agent: str
    question: str
    choices: tuple[str, ...]
    status: Status = "pending"
    answer: str | None = None
    why: str | None = None
    answered_by: str | None = None
    created_at: int = 0
    expires_at: int = 0
    resolved_at: int | None = None

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "id": self.id,
            "task_id": self.task_id,
            "session_key": self.session_key,
            "agent": self.agent,
            "question": self.question,
            "choices": list(self.choices),
            "status": self.status,
            "answer": self.answer,
            "why": self.why,
            "answered_by": self.answered_by,
            "created_at": iso(self.created_at),
            "expires_at": iso(self.expires_at),
            "resolved_at": iso(self.resolved_at),
        }


class ApprovalStore(Protocol):
    """Port: approvals. They are written through `Changes`."""

    async def get_approval(self, approval_id: str) -> Approval | None:
        """The approval, or None."""
        ...

    async def list_approvals(
        self, status: Status | None = None, limit: int = 50, task_id: str | None = None
    ) -> list[Approval]:
        """Newest first."""
        ...

    async def pending_approvals(self, fence: Fence) -> list[Approval]:
        """What an attempt has asked and nobody has answered."""
        ...

    async def overdue_approvals(self, now: int, limit: int = 100) -> list[Approval]:
        """Pending ones whose time is up, oldest first."""
        ...

    async def next_expiry(self) -> int | None:
        """When the next pending approval expires, or None."""
        ...


class Store(ApprovalStore, TaskStore, Protocol):
    """What this service needs of the store."""


# -- pure steps --------------------------------------------------------------------------------------------------


def ask(task: Task, asked: Question, expires_seconds: float, now: int) -> tuple[Approval, Changes]:
    """The question, and the step that puts it in the inbox: the task waits, its route is told how to answer."""
    question, choices = asked.text, tuple(choice.name for choice in asked.choices)
    if not question.strip() or not 1 <= len(choices) <= MAX_CHOICES:
        raise InvalidInput(f"ask a question with 1 to {MAX_CHOICES} choices.", field="question")
    made = Approval(
        id=new_id("a", now), task_id=task.id, attempt=task.attempt, session_key=task.session_key, agent=task.agent,
        question=question, choices=choices, created_at=now, expires_at=now + int(expires_seconds * SECOND),
    )  # fmt: skip
    how = f"midwatch approve {made.id} | midwatch deny {made.id}"
    text = f"{task.agent} asks: {cut(question, QUESTION_SHOWN)}\nAnswer: {how}"
    told = ApprovalRequested(approval_id=made.id, question=question, choices=choices, expires_at=iso(made.expires_at))
    waits = TaskWaiting(wait="approval", until=iso(made.expires_at), reason=made.id)
    return made, Changes(
        fence=Fence(task.id, task.attempt),
        updates=(Update("task", task.id, {"wait": "approval"}),),
        records=(made,),
        deliveries=notices(task, f"asked:{made.id}", text, now),
        events=(event(told, now, **meta(task)), event(waits, now, **meta(task))),
    )


def resolve(
    approval: Approval,
    status: Status,
    now: int,
    *,
    answer: str | None = None,
    why: str | None = None,
    actor: str | None = None,
) -> Changes:
    """Answer or expire a pending question; a second answer fails the guard."""
    told = ApprovalResolved(approval_id=approval.id, status=status, answer=answer, why=why)
    about = {"task_id": approval.task_id, "session_key": approval.session_key, "agent_id": approval.agent}
    fields = {"status": status, "answer": answer, "why": why, "answered_by": actor, "resolved_at": now}
    return Changes(
        updates=(Update("approval", approval.id, fields, {"status": "pending"}),),
        events=(event(told, now, **about, attempt=approval.attempt, actor=actor),),
    )


class Alive(Protocol):
    """A process that lives."""

    @property
    def id(self) -> str:
        """Its id, as leases name it."""
        ...


Living = Callable[[], Awaitable[Sequence[Alive]]]


class Approvals:
    """Service: the inbox."""

    def __init__(self, store: Store, clock: Clock, living: Living | None = None) -> None:
        self._store = store
        self._clock = clock
        self._living = living

    async def list(
        self, status: Status | None = "pending", limit: int = 50, *, task_id: str | None = None
    ) -> list[Approval]:
        """Open questions, or those with another status; None lists all. Newest first."""
        return await self._store.list_approvals(status, limit, task_id)

    async def get(self, approval_id: str) -> Approval:
        """The approval, or NotFound."""
        found = await self._store.get_approval(approval_id)
        if found is None:
            raise NotFound("approval", approval_id)
        return found

    async def answer(
        self,
        approval_id: str,
        choice: str | None = None,
        *,
        grant: bool | None = None,
        why: str | None = None,
        actor: str | None = None,
    ) -> Approval:
        """Answer with one of the choices, or simply yes or no. The first answer counts; a later one is a Conflict."""
        found = await self.get(approval_id)
        if found.status != "pending":
            raise Conflict(f"approval {found.id} is already {found.status}; the first answer counts.")
        await self._check_asker(found)
        if choice is None and grant is None:
            raise InvalidInput(f"say yes or no, or one of: {', '.join(found.choices)}.", field="choice")
        if choice is None:
            choice = found.choices[0] if grant else next(iter(found.choices[1:]), "no")
        elif choice not in found.choices:
            raise InvalidInput(f"answer with one of: {', '.join(found.choices)}.", field="choice")
        status: Status = "granted" if choice == found.choices[0] and grant is not False else "denied"
        now = self._clock.now()
        try:
            await self._store.apply(resolve(found, status, now, answer=choice, why=why, actor=actor))
        except Conflict as conflict:
            raise Conflict(f"approval {found.id} was answered meanwhile; the first answer counts.") from conflict
        return await self.get(approval_id)

    async def _check_asker(self, approval: Approval) -> None:
        """An answer nobody hears must not look like one that was heard."""
        task = await self._store.get_task(approval.task_id)
        waits = task is not None and task.status == "running" and task.attempt == approval.attempt
        if waits and self._living is not None:
            waits = task is not None and task.lease_owner in {one.id for one in await self._living()}
        if not waits:
            raise Conflict(
                f"the agent that asked {approval.id} does not run any more; it asks again when it is run again."
            )

    async def expire(self) -> int:
        """Expire what nobody answered in time. Returns how many."""
        now, expired = self._clock.now(), 0
        while overdue := await self._store.overdue_approvals(now):
            for approval in overdue:
                with suppress(Conflict):  # somebody answered in the last moment
                    await self._store.apply(resolve(approval, "expired", now, why="nobody answered in time"))
                    expired += 1
        return expired
