"""Sessions, their messages and their terminals as the HTTP interface shows them."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from midwatch.wire.tasks import TaskInfo, WrittenInfo


class ScreenInfo(TypedDict):
    """What a terminal shows. `status` is starting, idle, busy, asking or exited, `evidence` what tells so; `certain` is
    false when that is silence alone. `cursor` is column and row, from 0; `styled` is empty unless it was asked for."""

    text: str
    columns: int
    rows: int
    cursor: list[int]
    title: str
    status: str
    evidence: str
    certain: bool
    styled: str


class Pressed(TypedDict):
    """How many bytes were typed."""

    typed: int


class SessionInfo(TypedDict):
    """A conversation as JSON. `status` is idle, busy, asking, closed or lost."""

    key: str
    agent: str
    title: str
    status: str
    thread_id: str | None
    live: bool
    epoch: int
    workdir: str | None
    worktree: str | None
    creator: str | None
    created_at: str
    updated_at: str
    queued: int
    running_task: str | None
    steerable: NotRequired[bool]


class SessionPage(TypedDict):
    """Some sessions; `next` is the `before` of the following page."""

    sessions: list[SessionInfo]
    next: str | None


class MessageInfo(TypedDict):
    """A message of a conversation. `role` is user, agent, result or notice."""

    number: int
    id: str
    role: str
    author: str | None
    text: str
    time: str
    task_id: str | None
    html: NotRequired[str]


class MessagePage(TypedDict):
    """Messages in order; `more` says that there may be further ones."""

    messages: list[MessageInfo]
    more: bool


class FaultInfo(TypedDict):
    """A turn that failed (`error`), or is tried again (`warning`)."""

    message: str
    level: str
    time: str


class SessionStateInfo(TypedDict):
    """What a watcher of a conversation is shown first: its last messages, what runs, what waits, recent troubles."""

    kind: str
    as_of_seq: int
    session: SessionInfo
    messages: list[MessageInfo]
    partial: list[WrittenInfo]
    running: TaskInfo | None
    queue: list[TaskInfo]
    steers: list[SteerInfo]
    errors: list[FaultInfo]
    screen: str | None


class SteerInfo(TypedDict):
    """A message for a running turn. `status` is queued, injected (the turn has it), passed_on (it became a task, which
    has its id) or dropped."""

    id: str
    task_id: str
    session_key: str
    mode: str
    text: str
    status: str
    actor: str | None
    became: str | None
    created_at: str


class SentInfo(TaskInfo):
    """What became of a message: the task that will answer it. `mode` is when it reaches the agent; `steer` the message
    itself where it goes into a turn that runs, else null."""

    mode: str
    steer: SteerInfo | None


class Interrupted(TypedDict):
    """The task whose turn ends, or null when nothing ran; how (`abort` or `stop`); and the command that resumes what it
    belongs to, if that was paused."""

    interrupted: str | None
    mode: str
    resume: str | None
