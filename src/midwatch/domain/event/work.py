"""Kinds of events about work: the agent's loop, the conversation, the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.domain.event.payload import Payload, kind

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


@kind("llm_request", agents=True)
class LlmRequest(Payload):
    """The agent asks a model. Its `llm_response` has the same `request_id`; every request has one, whatever happens."""

    model: str
    messages_count: int
    tools_count: int = 0
    max_tokens: int | None = None
    temperature: float | None = None
    request_id: str | None = None


@kind("llm_delta", live=True, agents=True)
class LlmDelta(Payload):
    """More of a model's answer has arrived: how much, in characters. The words themselves are a `message_delta`."""

    content_delta_len: int = 0
    reasoning_delta_len: int = 0
    request_id: str | None = None


@kind("llm_retry", agents=True)
class LlmRetry(Payload):
    """A model call failed in a way that may pass and is made again after `backoff` seconds."""

    attempt: int
    max_retries: int
    reason: str
    error: str
    backoff: float
    request_id: str | None = None


@kind("llm_response", agents=True)
class LlmResponse(Payload):
    """A model answered the agent, or its call ended without an answer: `finish_reason` is then error, interrupted or
    cut_off. What the agent does not tell is None; `latency` is in seconds."""

    model: str | None = None
    content_len: int | None = None
    tool_calls: int | None = None
    has_reasoning: bool | None = None
    usage: Mapping[str, Any] | None = None
    finish_reason: str | None = None
    latency: float | None = None
    request_id: str | None = None


@kind("thought_update", agents=True)
class ThoughtUpdate(Payload):
    """What the agent thought, whole."""

    thought_id: str
    text: str


@kind("thought_delta", live=True, agents=True)
class ThoughtDelta(Payload):
    """More of a thought; `offset` is where it goes, in characters."""

    thought_id: str
    offset: int
    text: str


@kind("plan_update", agents=True)
class PlanUpdate(Payload):
    """The agent's plan as it stands. An entry has `content`, `status` (pending, in_progress, completed), `priority`."""

    entries: tuple[Mapping[str, Any], ...]


@kind("tool_exec_start", agents=True)
class ToolExecStart(Payload):
    """The agent begins to use a tool. `tool_kind` is read, edit, delete, move, search, execute, think, fetch or other;
    `title` says in a line what it does."""

    tool: str
    arguments: Any = None
    tool_call_id: str | None = None
    title: str | None = None
    tool_kind: str | None = None
    locations: tuple[str, ...] = ()


@kind("tool_exec_end", agents=True)
class ToolExecEnd(Payload):
    """The tool returned, failed, or was cut off with its turn. `duration` is in seconds."""

    tool: str
    tool_call_id: str | None = None
    duration: float | None = None
    for_llm_len: int | None = None
    for_user_len: int | None = None
    is_error: bool = False
    async_: bool = False
    """`async` in JSON: it goes on after this."""
    result: str | None = None
    diffs: tuple[Mapping[str, Any], ...] = ()
    """What it changed: `path`, `patch` (a unified diff, cut when long), `added`, `removed`, `cut`."""


@kind("tool_exec_skipped", agents=True)
class ToolExecSkipped(Payload):
    """A tool the model asked for was not run; the model was told `reason` as its result."""

    tool: str
    reason: str
    tool_call_id: str | None = None


@kind("context_trimmed", agents=True)
class ContextTrimmed(Payload):
    """Old parts of the conversation were left out of what the model sees. `reason` is budget or refused."""

    reason: str
    dropped_messages: int
    remaining_messages: int


@kind("steering_injected", agents=True)
class SteeringInjected(Payload):
    """Messages that people sent into the running turn have reached the model."""

    count: int
    total_content_len: int
    steer_ids: tuple[str, ...] = ()


@kind("interrupt_received")
class InterruptReceived(Payload):
    """Somebody asked the running turn to stop or to turn; the envelope's `actor` says who. `reason` is cancel (it is
    ended), stop (no more tools, one closing answer), or the mode of a message: interrupt, after_tool."""

    reason: str
    content_len: int | None = None
    queue_depth: int | None = None
    steer_id: str | None = None
    """Of the message, or of the request to close."""


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


@kind("agent_exited", agents=True)
class AgentExited(Payload):
    """The program of a conversation has ended by itself: its exit code, or minus the signal, and its last screen."""

    code: int | None
    screen: str | None = None


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
    worktree: Mapping[str, Any] | None = None
    transferred_to: str | None = None
    """The task that goes on with its work; its answer is the answer."""


@kind("budget_reached")
class BudgetReached(Payload):
    """What the task may spend is spent; it stops at its next step. `budget` names which: tokens, usd, steps, seconds of
    the task, the goal, the automation or the day (`scope`)."""

    budget: str
    scope: str
    limit: float
    spent: float


@kind("task_late")
class TaskLate(Payload):
    """An attempt that had lost its task came back with a result; it was not used."""

    outcome: str
    result: str | None = None
    error: str | None = None


@kind("worktree_changed")
class WorktreeChanged(Payload):
    """A worktree was made (`kept`), merged into a branch, or removed; the envelope names its latest task."""

    worktree_id: str
    status: str
    branch: str
    path: str
    files: int | None = None
    into: str | None = None
