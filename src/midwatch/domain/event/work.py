"""Kinds of events about the turns of agents, about conversations and about tasks."""

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
    """The turn ended. `status` is completed, error, aborted, timeout or budget; `duration` is in seconds.

    `cpu_seconds` and `peak_memory`, in bytes, are what the agent's programs used, where the kernel reports it.
    """

    status: str
    duration: float
    iterations: int | None = None
    final_content_len: int = 0
    cpu_seconds: float | None = None
    peak_memory: int | None = None


@kind("llm_request", agents=True)
class LlmRequest(Payload):
    """The agent calls a model.

    An `llm_response` with the same `request_id` always follows, even if the call fails.
    """

    model: str
    messages_count: int
    tools_count: int = 0
    max_tokens: int | None = None
    temperature: float | None = None
    request_id: str | None = None


@kind("llm_delta", live=True, agents=True)
class LlmDelta(Payload):
    """More of a model's answer arrived; lengths are in characters. The text itself is in a `message_delta` event."""

    content_delta_len: int = 0
    reasoning_delta_len: int = 0
    request_id: str | None = None


@kind("llm_retry", agents=True)
class LlmRetry(Payload):
    """A model call failed for a reason that may go away; it is repeated after `backoff` seconds."""

    attempt: int
    max_retries: int
    reason: str
    error: str
    backoff: float
    request_id: str | None = None


@kind("llm_response", agents=True)
class LlmResponse(Payload):
    """The call of a model ended.

    If the model gave no answer, `finish_reason` is error, interrupted or cut_off. Values that the agent does not report
    are null. `latency` is in seconds.
    """

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
    """A complete thought of the agent."""

    thought_id: str
    text: str


@kind("thought_delta", live=True, agents=True)
class ThoughtDelta(Payload):
    """More text of a thought arrived; `offset` is the position of this piece, in characters."""

    thought_id: str
    offset: int
    text: str


@kind("plan_update", agents=True)
class PlanUpdate(Payload):
    """The current plan of the agent. An entry has `content`, `status` (pending, in_progress, completed), `priority`."""

    entries: tuple[Mapping[str, Any], ...]


@kind("tool_exec_start", agents=True)
class ToolExecStart(Payload):
    """The agent starts to use a tool.

    `tool_kind` is read, edit, delete, move, search, execute, think, fetch or other; `title` describes the use in one
    line.
    """

    tool: str
    arguments: Any = None
    tool_call_id: str | None = None
    title: str | None = None
    tool_kind: str | None = None
    locations: tuple[str, ...] = ()


@kind("tool_exec_end", agents=True)
class ToolExecEnd(Payload):
    """The tool returned or failed, or the turn ended before the tool did.

    `duration` is in seconds. With `async` the tool continues after this event. An entry of `diffs` has `path`, `patch`
    (a unified diff, cut if it is long), `added`, `removed` and `cut`.
    """

    tool: str
    tool_call_id: str | None = None
    duration: float | None = None
    for_llm_len: int | None = None
    for_user_len: int | None = None
    is_error: bool = False
    async_: bool = False
    result: str | None = None
    diffs: tuple[Mapping[str, Any], ...] = ()


@kind("tool_exec_skipped", agents=True)
class ToolExecSkipped(Payload):
    """A tool that the model wanted to use was not run; the model got `reason` as the result.

    If a rule said no, or a person whom a rule asked, `rule` is this rule.
    """

    tool: str
    reason: str
    tool_call_id: str | None = None
    rule: str | None = None


@kind("hook_decided")
class HookDecided(Payload):
    """A hook decided something other than to go on.

    `decision` is change, answer, deny or stop. With `failed` the hook gave no valid decision, so midwatch denies;
    `reason` explains it. `duration` is in seconds.
    """

    hook: str
    seam: str
    decision: str
    reason: str | None = None
    failed: bool = False
    duration: float = 0.0
    tool: str | None = None
    tool_call_id: str | None = None
    request_id: str | None = None


@kind("context_trimmed", agents=True)
class ContextTrimmed(Payload):
    """Old messages were removed from the input of the model. `reason` is budget or refused."""

    reason: str
    dropped_messages: int
    remaining_messages: int


@kind("steering_injected", agents=True)
class SteeringInjected(Payload):
    """The model received messages that people sent during the turn."""

    count: int
    total_content_len: int
    steer_ids: tuple[str, ...] = ()


@kind("context_injected")
class ContextInjected(Payload):
    """The agent received results of background work that it had started.

    `task_ids` are the tasks that gave these results, and `outcomes` are their outcomes, in the same order.
    """

    count: int
    total_content_len: int
    task_ids: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()


@kind("interrupt_received")
class InterruptReceived(Payload):
    """The `actor` of the event interrupted the running turn, or sent a message to it.

    `reason` is cancel (the turn is ended), stop (no more tools, one last answer), or the mode of the message: interrupt
    or after_tool. `steer_id` is the id of the message, or of the request to stop.
    """

    reason: str
    content_len: int | None = None
    queue_depth: int | None = None
    steer_id: str | None = None


@kind("error", agents=True)
class LoopError(Payload):
    """An error happened in the loop of the agent; the turn may continue."""

    stage: str
    message: str


# -- the conversation --------------------------------------------------------------------------------------------


@kind("message_update", agents=True)
class MessageUpdate(Payload):
    """A complete message of the conversation.

    If the message is stored, `number` is its position in the conversation.
    """

    message_id: str
    role: str
    message: str
    number: int | None = None


@kind("message_delta", live=True, agents=True)
class MessageDelta(Payload):
    """More text of a message that is being written; `offset` is the position of this piece, in characters."""

    message_id: str
    offset: int
    text: str


@kind("status_change")
class StatusChange(Payload):
    """The status of the conversation changed to idle, busy, asking, closed or lost.

    `agent_type` is the agent of the conversation.
    """

    status: str
    agent_type: str


@kind("screen_update", live=True, agents=True)
class ScreenUpdate(Payload):
    """The current screen of an agent that runs in a terminal."""

    screen: str


@kind("agent_error", agents=True)
class AgentFault(Payload):
    """A turn failed (`level` is error), or a failed turn is tried again (`level` is warning)."""

    message: str
    level: str


@kind("agent_exited", agents=True)
class AgentExited(Payload):
    """The program of a conversation ended by itself. `code` is its exit code, or minus the number of the signal."""

    code: int | None
    screen: str | None = None


@kind("session_opened")
class SessionOpened(Payload):
    """A conversation was opened, for the first time or again."""

    agent: str
    workdir: str | None = None
    title: str | None = None


@kind("session_closed")
class SessionClosed(Payload):
    """A conversation was closed; its open tasks were cancelled."""

    reason: str


# -- the task ----------------------------------------------------------------------------------------------------


@kind("task_submitted")
class TaskSubmitted(Payload):
    """A task was accepted and stored."""

    prompt: str
    agent: str
    cause: str
    priority: int = 0
    due_at: str | None = None
    retry_of: str | None = None


@kind("task_started")
class TaskStarted(Payload):
    """A process started the task; the `attempt` of the event is the number of the start."""

    agent: str
    owner: str
    host: str


@kind("task_progress", agents=True)
class TaskProgress(Payload):
    """The agent reports what it is doing."""

    text: str
    percent: float | None = None


@kind("task_waiting")
class TaskWaiting(Payload):
    """The task cannot continue now.

    `wait` is the reason, such as approval or delay. `until` is when the wait ends, if that is known.
    """

    wait: str
    until: str | None = None
    reason: str | None = None


@kind("task_interrupted")
class TaskInterrupted(Payload):
    """The running task was stopped before its end and will continue later."""

    reason: str


@kind("task_rescued")
class TaskRescued(Payload):
    """The process of the task died; `action` is what happens to the task: resume, rerun, fail or cancelled."""

    action: str
    owner: str | None = None
    rescues: int = 0


@kind("task_finished")
class TaskFinished(Payload):
    """The task ended.

    If another task continues the work and gives the answer, `transferred_to` is this other task.
    """

    status: str
    outcome: str
    result: str | None = None
    error: str | None = None
    usage: Mapping[str, Any] | None = None
    worktree: Mapping[str, Any] | None = None
    transferred_to: str | None = None


@kind("budget_reached")
class BudgetReached(Payload):
    """A budget of the task is spent; the task stops at its next step, or waits until people were asked.

    `budget` is tokens, usd, steps or seconds; `scope` is task, goal, automation, day, or tree for a budget of the work
    that the task grew out of.
    """

    budget: str
    scope: str
    limit: float
    spent: float
    account_id: str | None = None


@kind("budget_warned")
class BudgetWarned(Payload):
    """Four fifths of a budget are spent. The fields are those of `budget_reached`."""

    budget: str
    scope: str
    limit: float
    spent: float
    account_id: str


@kind("task_late")
class TaskLate(Payload):
    """An attempt returned a result after it had lost its task; the result was not used."""

    outcome: str
    result: str | None = None
    error: str | None = None


@kind("probe_start")
class ProbeStart(Payload):
    """A command of the task starts: `probe` is when (before the agent is called) or check (after a step of a goal).

    A `probe_end` always follows.
    """

    probe: str
    command: str
    timeout: float


@kind("probe_end")
class ProbeEnd(Payload):
    """The command of the task ended. Without an `exit_status`, `error` says why it has none.

    `output` is the end of what the command wrote. `passed` is whether the exit status is 0; `duration` is in seconds.
    """

    probe: str
    passed: bool = False
    exit_status: int | None = None
    duration: float | None = None
    output: str = ""
    error: str | None = None


@kind("worktree_changed")
class WorktreeChanged(Payload):
    """A worktree was created (`status` is kept), merged into a branch, or removed.

    The `task_id` of the event is the latest task of the worktree.
    """

    worktree_id: str
    status: str
    branch: str
    path: str
    files: int | None = None
    into: str | None = None
