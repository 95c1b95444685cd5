"""Steering: messages that people send into a turn while it runs.

A message is attached to the running task. The turn takes each message once: at its next step (mode `interrupt`), or
when the running tool has returned (mode `after_tool`). The mode `stop` asks for no more tools and one last answer. When
the task ends, each message that was not taken becomes a task of the session, in the same transaction. A message with
the mode `after_turn` is a task from the beginning. A message, the task that it may become and its entry in the
conversation have the same id, so nothing appears twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import Event, InterruptReceived, event
from midwatch.domain.fields import Example, Hidden, JsonRecord
from midwatch.domain.lineage import derive, own_budget
from midwatch.domain.session import Message, announce_message
from midwatch.domain.task import Task, in_turn, new_task, prompt_message, submit_task

Mode = Literal["interrupt", "after_tool", "stop"]
SendMode = Literal["after_turn", "interrupt", "after_tool"]
"""The time at which a message of a person reaches a busy agent."""
SEND_MODES: tuple[SendMode, ...] = ("after_turn", "interrupt", "after_tool")
Status = Literal["queued", "injected", "passed_on", "dropped"]
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "queued": frozenset({"injected", "passed_on", "dropped"}),
    "injected": frozenset({"queued"}),  # the turn that should take it had ended
    "passed_on": frozenset(),
    "dropped": frozenset(),
}
MOST_QUEUED = 10
"""How many messages may wait for one turn; a further message is refused."""
STOP = "Stop here: use no more tools, and close with one answer."
"""The message that a turn gets for a request to stop, if the person gave no hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer(JsonRecord):
    """One message for a running turn.

    The status `passed_on` means that the message became a task. The status `dropped` means that it was given up, for
    example because its session was closed.
    """

    noun: ClassVar[str] = "steer"

    id: Annotated[str, Example("t_06f2m8yq9a3c5e7g9j1k")]
    task_id: Annotated[str, Example("t_06f2m8yq3kq5r0v9x1w2")]
    number: Hidden[int]
    """The position of the message among the messages of its task, from 1."""
    session_key: Annotated[str, Example("chat:42")]
    mode: Annotated[Mode, Example("after_tool")]
    text: Annotated[str, Example("And now in French, please.")]
    created_at: int
    status: Status = "queued"
    actor: str | None = None
    attempt: Hidden[int | None] = None
    """The attempt whose turn took the message."""
    became: str | None = None
    """The task that the message became; the task has the same id as the message."""
    idempotency_key: Hidden[str | None] = None


class SendResult(NamedTuple):
    """The result of sending a message.

    If `steer` is set, it waits for the turn of `task`. Otherwise `task` is the task that the message became.
    """

    task: Task
    steer: Steer | None = None

    @property
    def mode(self) -> SendMode:
        """Return when the message reaches the agent.

        This is `after_turn` if no task ran, or if the agent does not take messages during a turn.
        """
        if self.steer is None or self.steer.mode == "stop" or self.steer.status == "passed_on":
            return "after_turn"
        return self.steer.mode

    def snapshot(self) -> dict[str, Any]:
        """Return the result as JSON shows it: the task that will answer, the mode, and the message."""
        return {**self.task.snapshot(), "mode": self.mode, "steer": self.steer.snapshot() if self.steer else None}


class SteerStore(Protocol):
    """Port: messages for running turns."""

    async def send_steer(
        self,
        wanted: Steer,
        otherwise: Task | None,
        max_open: int | None = None,
        max_of_actor: int | None = None,
    ) -> SendResult | None:
        """Attach the message `wanted` to the running task of its session.

        If no task runs, submit the task `otherwise`, as `TaskStore.submit` does; if `otherwise` is None, return None.
        If the actor used the same idempotency key before, return the result of the first message, or raise KeyReused if
        that message differs. Raise LimitReached if `MOST_QUEUED` messages wait, and Conflict if the session is closed.
        """

    async def list_queued_steers(self, task_id: str) -> list[Steer]:
        """Return the messages that the turn of a task has not taken yet, oldest first."""


# -- pure steps --------------------------------------------------------------------------------------------------


def attach_steer(steer: Steer, task: Task, depth: int, now: int) -> Changes:
    """Return the step that attaches a message to the running turn of `task`; `depth` messages already wait."""
    about = in_turn(task, steer.actor)
    received = InterruptReceived(
        reason=steer.mode, content_len=len(steer.text), queue_depth=depth + 1, steer_id=steer.id
    )  # fmt: skip
    events: list[Event] = [event(received, now, **about)]
    messages: tuple[Message, ...] = ()
    if steer.text:
        shown = Message(
            session_key=steer.session_key, role="user", text=steer.text, time=now, task_id=task.id, id=steer.id,
            author=steer.actor,
        )  # fmt: skip
        messages = (prompt_message(task, now), shown)  # a turn that has just begun may not have written its prompt yet
        events.extend(
            (announce_message(messages[0], **{**about, "actor": task.creator}), announce_message(shown, **about))
        )
    return Changes(records=(steer,), messages=messages, events=tuple(events))


def requeue_steers(task: Task, queued: Sequence[Steer], now: int, *, closed: bool) -> Changes:
    """Return the step that submits the messages that an ended task has not taken as new tasks, in order.

    Requests to stop are dropped. If the session is closed, all messages are dropped.
    """
    changes = Changes()
    for steer in queued:
        requeued = not closed and steer.mode != "stop"
        after = {"status": "passed_on", "became": steer.id} if requeued else {"status": "dropped"}
        changes = changes.plus(Changes(updates=(Update("steer", steer.id, after, {"status": "queued"}),)))
        if requeued:
            changes = changes.plus(submit_task(_as_task(task, steer, now), now))
    return changes


def _as_task(before: Task, steer: Steer, now: int) -> Task:
    """Return the task for a message; it has the same settings as `before`, the task that the message was sent to."""
    task = new_task(
        now, steer.text, before.agent, before.session_key, task_id=steer.id, cause="message", creator=steer.actor,
        origin_session=steer.session_key, worktree={"id": before.worktree["id"]} if before.worktree else None,
        approvals=before.approvals, budget=own_budget(before),
        **{name: getattr(before, name) for name in KEPT_FIELDS},
    )  # fmt: skip
    return derive(task, before, "steer")._replace(due_at=steer.created_at)  # it keeps its place in the queue


KEPT_FIELDS = (
    "workdir",
    "pin",
    "dir_key",
    "timeout_seconds",
    "on_crash",
    "max_attempts",
    "submitter",
    "trace",
    "on_budget",
)
