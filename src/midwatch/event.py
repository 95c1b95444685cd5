"""Events: the only thing that leaves midwatch.

Every change of state and every step of an agent is an event, written in the transaction of the change it tells of.
An `Event` is an envelope around one payload; each kind of payload is one frozen class below. Live kinds (deltas) are
shown to whoever watches and are never stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform

from midwatch.clock import iso, new_id

VERSION = 1
"""Of the envelope and the payloads; raised when a field changes its meaning."""


class Payload:
    """Base of all payloads: what happened, as named fields."""

    __slots__ = ()
    kind: ClassVar[str]
    live: ClassVar[bool]
    agents: ClassVar[bool]
    """Whether it is an agent's to tell; all others are midwatch's own."""
    names: ClassVar[tuple[str, ...]]

    def data(self) -> dict[str, Any]:
        """The payload as plain data, ready for JSON."""
        return {name: _kept(getattr(self, name)) for name in self.names}


def _kept(value: Any) -> Any:
    """The value as it is now; what it came from may change before it is written."""
    return deepcopy(value) if isinstance(value, dict | list) else value


KINDS: dict[str, type[Payload]] = {}
"""Every kind of event by its name."""

P = TypeVar("P", bound=Payload)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def kind(name: str, *, live: bool = False, agents: bool = False) -> Callable[[type[P]], type[P]]:
    """Make a class the frozen payload of events called `name`."""

    def register(cls: type[P]) -> type[P]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        made.kind, made.live, made.agents = name, live, agents
        made.names = tuple(f.name for f in fields(made))  # type: ignore[arg-type]  # it is a dataclass now
        KINDS[name] = made
        return made

    return register


class Event(NamedTuple):
    """One fact. `seq` is 0 until it is stored; stored ones have consecutive numbers without holes."""

    kind: str
    time: int
    payload: Mapping[str, Any]
    id: str = ""
    seq: int = 0
    version: int = VERSION
    agent_id: str | None = None
    turn_id: str | None = None
    parent_turn_id: str | None = None
    session_key: str | None = None
    task_id: str | None = None
    attempt: int | None = None
    actor: str | None = None
    iteration: int | None = None
    trace_id: str | None = None
    span_id: str | None = None
    trace_path: str | None = None
    source: str | None = None

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it: empty meta fields left out, the time as ISO text."""
        shown: dict[str, Any] = {
            "seq": self.seq,
            "id": self.id,
            "kind": self.kind,
            "time": iso(self.time),
            "version": self.version,
            "task_id": self.task_id,
        }
        for name in META:
            value = getattr(self, name)
            if value is not None:
                shown[name] = value
        shown["payload"] = self.payload
        return shown


META = (
    "agent_id", "turn_id", "parent_turn_id", "session_key", "task_id", "attempt", "actor", "iteration",
    "trace_id", "span_id", "trace_path", "source",
)  # fmt: skip


def event(payload: Payload, now: int, **meta: Any) -> Event:
    """Wrap a payload in its envelope."""
    return Event(payload.kind, now, payload.data(), new_id("e", now), **meta)


# -- the agent's loop --------------------------------------------------------------------------------------------


@kind("turn_start")
class TurnStart(Payload):
    """An agent begins to work on a prompt."""

    user_message: str
    channel: str | None = None
    chat_id: str | None = None
    media_count: int = 0


@kind("turn_end")
class TurnEnd(Payload):
    """The turn is over. `status` is completed, error, aborted, timeout or budget; `duration` is in seconds."""

    status: str
    duration: float
    iterations: int | None = None
    final_content_len: int = 0


@kind("tool_exec_start", agents=True)
class ToolExecStart(Payload):
    """The agent begins to use a tool."""

    tool: str
    arguments: Any = None
    tool_call_id: str | None = None


@kind("tool_exec_end", agents=True)
class ToolExecEnd(Payload):
    """The tool returned, failed, or was cut off with its turn. `duration` is in seconds."""

    tool: str
    tool_call_id: str | None = None
    duration: float | None = None
    for_llm_len: int | None = None
    for_user_len: int | None = None
    is_error: bool = False
    result: str | None = None


@kind("interrupt_received")
class InterruptReceived(Payload):
    """Somebody asked the running turn to stop; the envelope's `actor` says who."""

    reason: str


@kind("error", agents=True)
class LoopError(Payload):
    """Something went wrong in the agent's loop; the turn may go on."""

    stage: str
    message: str


# -- the conversation --------------------------------------------------------------------------------------------


@kind("message_update", agents=True)
class MessageUpdate(Payload):
    """A whole message of the conversation, as it stands."""

    message_id: str
    role: str
    message: str
    number: int | None = None
    """Its place in the conversation, given by the store."""


@kind("message_delta", live=True, agents=True)
class MessageDelta(Payload):
    """More text of a message that is being written; `offset` is where it goes, in characters."""

    message_id: str
    offset: int
    text: str


@kind("status_change")
class StatusChange(Payload):
    """What the conversation does now: idle, busy, asking, closed or lost; `agent_type` is its agent."""

    status: str
    agent_type: str


@kind("screen_update", live=True, agents=True)
class ScreenUpdate(Payload):
    """The whole screen of a terminal agent, as it stands."""

    screen: str


@kind("agent_error", agents=True)
class AgentFault(Payload):
    """A turn of the conversation failed (`error`) or is tried again (`warning`)."""

    message: str
    level: str


@kind("session_opened")
class SessionOpened(Payload):
    """A conversation was opened, or opened again."""

    agent: str
    workdir: str | None = None
    title: str | None = None


@kind("session_closed")
class SessionClosed(Payload):
    """A conversation was closed; what was open in it was cancelled."""

    reason: str


# -- the task ----------------------------------------------------------------------------------------------------


@kind("task_submitted")
class TaskSubmitted(Payload):
    """A task was accepted and is durable."""

    prompt: str
    agent: str
    cause: str
    priority: int = 0
    due_at: str | None = None
    retry_of: str | None = None


@kind("task_started")
class TaskStarted(Payload):
    """A process took the task; the envelope's `attempt` says which time this is."""

    agent: str
    owner: str
    host: str


@kind("task_progress", agents=True)
class TaskProgress(Payload):
    """What the agent is doing, in its own words."""

    text: str
    percent: float | None = None


@kind("task_waiting")
class TaskWaiting(Payload):
    """The task cannot go on for now: `wait` is approval, delay, backoff, limit, ...; `until` may be known."""

    wait: str
    until: str | None = None
    reason: str | None = None


@kind("task_interrupted")
class TaskInterrupted(Payload):
    """The running task was stopped before its end and will continue later."""

    reason: str


@kind("task_rescued")
class TaskRescued(Payload):
    """The process that ran the task died; `action` is what became of it: resume, rerun, fail or cancelled."""

    action: str
    owner: str | None = None
    rescues: int = 0


@kind("task_finished")
class TaskFinished(Payload):
    """The task has ended for good."""

    status: str
    outcome: str
    result: str | None = None
    error: str | None = None
    usage: Mapping[str, Any] | None = None


@kind("task_late")
class TaskLate(Payload):
    """An attempt that had lost its task came back with a result; it was not used."""

    outcome: str
    result: str | None = None
    error: str | None = None


# -- automations and goals -----------------------------------------------------------------------------------------


@kind("automation_created")
class AutomationCreated(Payload):
    """An automation was made."""

    automation_id: str
    title: str
    schedule: Any
    next_run_at: str | None = None


@kind("automation_changed")
class AutomationChanged(Payload):
    """Somebody changed an automation; `fields` says what."""

    automation_id: str
    fields: tuple[str, ...]
    status: str


@kind("automation_fired")
class AutomationFired(Payload):
    """An automation's time came, and its task was made."""

    automation_id: str
    task_id: str
    scheduled_for: str
    run: int


@kind("automation_missed")
class AutomationMissed(Payload):
    """A run was left out (`overlap`, `late`) or made up for (`caught_up`); `count` of its times had passed."""

    automation_id: str
    reason: str
    scheduled_for: str
    count: int = 1


@kind("automation_paused")
class AutomationPaused(Payload):
    """An automation fires no more until it is resumed."""

    automation_id: str
    why: str


@kind("goal_created")
class GoalCreated(Payload):
    """A goal was set."""

    goal_id: str
    objective: str
    deadline_at: str


@kind("goal_changed")
class GoalChanged(Payload):
    """Somebody changed a goal, or removed it; `fields` says what."""

    goal_id: str
    fields: tuple[str, ...]
    status: str


@kind("goal_step")
class GoalStep(Payload):
    """A goal's next task was made: a step, the verification of a claim, or the wrap-up at its deadline."""

    goal_id: str
    step: int
    work: str
    task_id: str


@kind("goal_delayed")
class GoalDelayed(Payload):
    """The next step of a goal begins later."""

    goal_id: str
    until: str | None
    reason: str


@kind("goal_paused")
class GoalPaused(Payload):
    """A goal rests until it is resumed."""

    goal_id: str
    why: str


@kind("goal_completed")
class GoalCompleted(Payload):
    """A goal was reached."""

    goal_id: str
    evidence: str | None
    steps: int


@kind("goal_timed_out")
class GoalTimedOut(Payload):
    """The deadline of a goal has passed."""

    goal_id: str
    steps: int


# -- approvals and deliveries --------------------------------------------------------------------------------------


@kind("approval_requested")
class ApprovalRequested(Payload):
    """An agent asks before it acts."""

    approval_id: str
    question: str
    choices: tuple[str, ...]
    expires_at: str | None = None


@kind("approval_resolved")
class ApprovalResolved(Payload):
    """The question was answered, or nobody answered in time."""

    approval_id: str
    status: str
    answer: str | None = None
    why: str | None = None


@kind("delivery_sent")
class DeliverySent(Payload):
    """A notification reached its channel."""

    delivery_id: str
    channel: str
    notice: str


@kind("delivery_failed")
class DeliveryFailed(Payload):
    """A notification could not be sent and will not be tried again."""

    delivery_id: str
    channel: str
    notice: str
    error: str


# -- identity ----------------------------------------------------------------------------------------------------


@kind("token_created")
class TokenCreated(Payload):
    """A token was made: `token_kind` is api or link, `for_actor` is whom it lets in; the envelope's `actor` made it."""

    token_id: str
    token_kind: str
    name: str
    role: str
    for_actor: str


@kind("token_revoked")
class TokenRevoked(Payload):
    """A token was ended, or a browser signed out; the envelope's `actor` did it."""

    token_id: str
    token_kind: str
    name: str
    role: str


@kind("signed_in")
class SignedIn(Payload):
    """A browser was signed in; the envelope's `actor` is who."""

    token_id: str
    token_kind: str
    name: str
    role: str


@kind("delivery_retried")
class DeliveryRetried(Payload):
    """Somebody asked for a notification that could not be sent to be tried again."""

    delivery_id: str
    channel: str
    notice: str


@kind("watchdog_alert")
class WatchdogAlert(Payload):
    """Something does not go as it should: `alert` is overdue, stuck or silent, `subject` the id it is about."""

    subject: str
    alert: str
    text: str
    since: str


# -- the stream itself -------------------------------------------------------------------------------------------


@kind("gap", live=True)
class Gap(Payload):
    """Something is missing here: stored events before `oldest_seq` were pruned, the log ends before where the reader
    was, or `dropped` live ones were too many."""

    oldest_seq: int | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events to read; empty means all."""

    kinds: tuple[str, ...] = ()
    task_id: str | None = None
    session_key: str | None = None
    agent_id: str | None = None
    actor: str | None = None

    def matches(self, found: Event) -> bool:
        """Whether `found` is one of them."""
        return (
            (not self.kinds or found.kind in self.kinds)
            and self.task_id in (None, found.task_id)
            and self.session_key in (None, found.session_key)
            and self.agent_id in (None, found.agent_id)
            and self.actor in (None, found.actor)
        )


EVERYTHING = EventFilter()


class LogBounds(NamedTuple):
    """What the log holds: the first and the last stored seq (0 and 0 when empty)."""

    oldest_seq: int
    last_seq: int


class Page(list[Event]):
    """Some events, in order. `cut` says that it ends early because they are large, not because there are no more."""

    cut = False


class EventLog(Protocol):
    """Port: the stored events."""

    async def read_events(self, after: int, which: EventFilter = EVERYTHING, limit: int = 500) -> Page:
        """Up to `limit` matching events with seq > `after`, in order; fewer of large ones, but one at least."""
        ...

    async def read_events_back(self, before: int, which: EventFilter = EVERYTHING, limit: int = 500) -> list[Event]:
        """The last `limit` matching events with seq < `before`, in order."""
        ...

    async def log_bounds(self) -> LogBounds:
        """The seqs the log still holds. A follower below `oldest_seq` - 1 has missed events."""
        ...

    async def get_cursor(self, name: str) -> int | None:
        """How far somebody has followed the log, or None."""
        ...

    async def set_cursor(self, name: str, seq: int) -> None:
        """Note how far somebody has followed the log."""
        ...

    async def prune_events(self, before: int, keep: int) -> int:
        """Remove events older than `before`, and the oldest beyond `keep`, never those of an open task: these stay
        readable below `oldest_seq`, from where on the log has no holes. Returns how many went."""
        ...


class Follower(Protocol):
    """Port: who can follow the log as it grows."""

    def follow(self, after: int, which: EventFilter = EVERYTHING, *, live: bool = False) -> AsyncGenerator[Event, None]:
        """All matching events with seq > `after`, then every new one, each once and in order, for ever. With `live`
        also those that are never stored (seq 0), which a slow reader may lose: a `gap` event says so."""
        ...
