"""Tasks, sessions, events, agents and the desk as the HTTP interface shows them."""

from __future__ import annotations

from typing import (
    Any,
    NotRequired,  # pydantic reads these for the API's description, also on 3.11
)

from typing_extensions import TypedDict

from midwatch.wire.approvals import ApprovalInfo
from midwatch.wire.handoffs import HandoffInfo
from midwatch.wire.worktrees import WorktreeNote


class TaskInfo(TypedDict):
    """A task as JSON; times are ISO 8601 in UTC."""

    id: str
    status: str
    status_text: str
    outcome: str | None
    prompt: str
    result: str | None
    error: str | None
    agent: str
    session_key: str
    origin_channel: str | None
    origin_session: str | None
    route: str | None
    workdir: str | None
    worktree: WorktreeNote | None
    cause: str
    cause_id: str | None
    priority: int
    creator: str | None
    timeout_seconds: float | None
    on_crash: str
    attempt: int
    failures: int
    rescues: int
    interruptions: int
    max_attempts: int
    stop_requested: str | None
    wait: str | None
    root_id: str | None
    parent_id: str | None
    retry_of: str | None
    transferred_to: str | None
    budget: dict[str, Any] | None
    usage: dict[str, Any] | None
    tokens_used: int | None
    created_at: str
    due_at: str
    started_at: str | None
    completed_at: str | None


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


class TaskPage(TypedDict):
    """Some tasks; `next` is the `before` of the following page."""

    tasks: list[TaskInfo]
    next: str | None


class Counts(TypedDict):
    """How many tasks there are, by status."""

    total: int
    pending: int
    running: int
    done: int
    failed: int
    cancelled: int


class EventInfo(TypedDict, total=False):
    """An event as JSON. Live ones have seq 0."""

    seq: int
    id: str
    kind: str
    time: str
    version: int
    task_id: str | None
    agent_id: str
    turn_id: str
    parent_turn_id: str
    session_key: str
    attempt: int
    actor: str
    iteration: int
    trace_id: str
    span_id: str
    trace_path: str
    source: str
    payload: dict[str, Any]


class EventPage(TypedDict):
    """Some stored events, and the first and last seq of the log."""

    events: list[EventInfo]
    oldest_seq: int
    last_seq: int
    more: bool


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


class WrittenInfo(TypedDict):
    """What has been written of a message that is not whole yet."""

    message_id: str
    task_id: str | None
    text: str


class FaultInfo(TypedDict):
    """A turn that failed (`error`), or is tried again (`warning`)."""

    message: str
    level: str
    time: str


class TaskStateInfo(TypedDict):
    """What a watcher of a task is shown first, and after a break again. The client gives it its kind, `state`."""

    kind: str
    as_of_seq: int
    task: TaskInfo
    partial: WrittenInfo | None


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


class DeliveryInfo(TypedDict):
    """A delivery as JSON."""

    id: str
    task_id: str
    channel: str
    notice: str
    text: str
    status: str
    attempts: int
    due_at: str | None
    sent_at: str | None
    error: str | None


class DeliveryPage(TypedDict):
    """Deliveries, newest first."""

    deliveries: list[DeliveryInfo]


class Capability(TypedDict):
    """What an agent is given handed-over work for."""

    name: str
    description: str
    task_types: list[str]
    priority: int


class AgentInfo(TypedDict, total=False):
    """An agent as JSON; of one that only another process knows just `name` and `live`."""

    name: str
    live: bool
    kind: str
    why: str | None
    version: str
    description: str
    capabilities: list[Capability]
    handoffs: bool
    slots: int
    timeout: float | None
    on_crash: str
    steerable: bool
    problem: str | None
    command: str
    target: str


class AgentPage(TypedDict):
    """All agents by name, and which one works when nobody says."""

    agents: list[AgentInfo]
    default: str


class ProcessInfo(TypedDict):
    """A process that runs tasks, as JSON. Where processes live by file locks they have no heartbeat."""

    id: str
    role: str
    host: str
    pid: int
    agents: list[str]
    slots: int
    started_at: str
    running: int
    live: bool
    heartbeat_age: float | None
    leader: bool


class ClusterInfo(TypedDict):
    """The processes on a store, oldest first, and facts about the store."""

    store: dict[str, Any]
    processes: list[ProcessInfo]


class Me(TypedDict):
    """Who speaks, and to whom; only an owner is told where the home is."""

    actor: str
    role: str
    version: str
    home: str | None


class TokenInfo(TypedDict):
    """A token as JSON, without its secret."""

    id: str
    kind: str
    name: str
    actor: str
    role: str
    created_at: str
    created_by: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class TokenMade(TokenInfo):
    """A new token, with its secret, which is told once."""

    secret: str


class TokenPage(TypedDict):
    """Tokens of programs and browsers, newest first."""

    tokens: list[TokenInfo]


class SignedIn(TypedDict):
    """Whose browser it is now, and until when."""

    actor: str
    role: str
    expires_at: str


class SignedOut(TypedDict):
    """The cookie is removed."""

    signed_out: bool


class Link(TypedDict):
    """An address that signs one browser in, once."""

    url: str
    expires_at: str


class Consumed(TypedDict):
    """What work has cost. Figures that no agent told are null, not 0; `untold` tasks told nothing, `unpriced` ones no
    cost."""

    tasks: int
    done: int
    failed: int
    cancelled: int
    untold: int
    unpriced: int
    seconds: float
    input_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None


class ConsumedBy(Consumed):
    """What one part has cost; it has the names that were asked for. '' is the session of tasks in no conversation, and
    the model of those that told none."""

    actor: NotRequired[str]
    agent: NotRequired[str]
    session: NotRequired[str]
    model: NotRequired[str]
    day: NotRequired[str]


class UsageInfo(TypedDict):
    """What the tasks that ended in a time have cost, in all and by what was asked for."""

    since: str
    until: str | None
    by: list[str]
    zone: str
    total: Consumed
    rows: list[ConsumedBy]
    left_off: int
    """Rows beyond `limit`."""


class Kin(TypedDict):
    """A task that belongs to another: `relation` is root, parent, retry_of, retry, child, self or other."""

    id: str
    relation: str
    status: str
    outcome: str | None
    prompt: str
    agent: str
    created_at: str


class TaskView(TypedDict):
    """Everything a page about a task shows. The HTML is safe to show."""

    task: TaskInfo
    prompt_html: str
    result_html: str | None
    lineage: list[Kin]
    handoffs: list[HandoffInfo]
    deliveries: list[DeliveryInfo]
    approvals: list[ApprovalInfo]
    last_event_at: str | None


class Activity(TypedDict):
    """The last thing that happened to a task."""

    at: str
    text: str


class RunningTask(TaskInfo):
    """A task that runs."""

    activity: Activity | None


class Now(TypedDict):
    """The desk at a glance."""

    as_of_seq: int
    summary: Counts
    running: list[RunningTask]
    approvals: list[ApprovalInfo]
    failed: list[TaskInfo]
    recent: list[TaskInfo]
    usage: UsageInfo


class Directories(TypedDict):
    """The directories in a directory of the server's machine."""

    path: str
    parent: str | None
    directories: list[str]


class SettingsInfo(TypedDict):
    """What is set, without anything secret."""

    default_agent: str
    notify: str | None
    channels: list[str]
    limits: dict[str, Any]
    retention: dict[str, Any]
    store: dict[str, Any]


class ResultInfo(TypedDict):
    """The whole text of a task that is done."""

    id: str
    result: str


class Ready(TypedDict):
    """Whether tasks are taken and the database answers."""

    status: str


class ProblemInfo(TypedDict):
    """An error. Programs look at `code`; people read `detail`."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    field: str | None


class Health(TypedDict):
    """What the server says about itself."""

    status: str
    version: str
