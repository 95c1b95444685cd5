"""Sessions, their messages and their terminals as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from typing_extensions import TypedDict

from midwatch.domain.agent import Screenshot
from midwatch.domain.fields import Example
from midwatch.domain.session import Fault, Message, Session
from midwatch.domain.steering import Steer
from midwatch.domain.task import Task
from midwatch.wire.shapes import shape_of
from midwatch.wire.tasks import TASK, DraftInfo, TaskInfo


@shape_of(Screenshot)
class ScreenInfo(dict[str, Any]):
    """The screen of a terminal. `status` is starting, idle, busy, asking or exited.

    `evidence` is the reason for the status. `certain` is false if the evidence is only silence. `cursor` is column and
    row, from 0. `styled` is empty unless the request asks for it.
    """


class KeysTyped(TypedDict):
    """The number of bytes that were typed into a terminal."""

    typed: int


@shape_of(
    Session,
    live=Annotated[bool, Example(False)],
    queued=Annotated[int, Example(0)],
    running_task=Annotated[str | None, Example(None)],
    steerable=NotRequired[bool],
)
class SessionInfo(dict[str, Any]):
    """A conversation as JSON. `status` is idle, busy, asking, closed or lost."""


class SessionPage(TypedDict):
    """Some sessions; `next` is the value of `before` for the following page."""

    sessions: list[SessionInfo]
    next: str | None


@shape_of(Message, html=NotRequired[str])
class MessageInfo(dict[str, Any]):
    """A message of a conversation. `role` is user, agent, result or notice."""


class MessagePage(TypedDict):
    """Messages in order; `more` means that there may be further messages."""

    messages: list[MessageInfo]
    more: bool


@shape_of(Fault)
class FaultInfo(dict[str, Any]):
    """The error of a turn that failed (`level` is error), or is tried again (`level` is warning)."""


class SessionStateInfo(TypedDict):
    """The first data for a watcher of a conversation.

    The data are the last messages, the running and waiting tasks, and recent errors.
    """

    kind: str
    as_of_seq: int
    session: SessionInfo
    messages: list[MessageInfo]
    partial: list[DraftInfo]
    running: TaskInfo | None
    queue: list[TaskInfo]
    steers: list[SteerInfo]
    errors: list[FaultInfo]
    screen: str | None


@shape_of(Steer)
class SteerInfo(dict[str, Any]):
    """A message for a running turn. `status` is queued, injected, passed_on or dropped.

    `injected` means that the turn has the message. `passed_on` means that the message became a task with the same id.
    """


@shape_of(Task, **TASK, mode=Annotated[str, Example("after_turn")], steer=Annotated[SteerInfo | None, Example(None)])
class SentInfo(TaskInfo):
    """The task that will answer a message, and `mode`: when the message reaches the agent.

    If the message goes to a running turn, `steer` is the message; otherwise it is null.
    """


class Interruption(TypedDict):
    """The task whose turn is ended, or null if no task ran; `mode` is `abort` or `stop`.

    `resume` is the command that resumes the task's automation or goal, if the interruption paused it.
    """

    interrupted: Annotated[str | None, Example("t_06f2m8yq3kq5r0v9x1w2")]
    mode: Annotated[str, Example("stop")]
    resume: str | None
