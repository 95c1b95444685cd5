// Apply events to tasks, and format an event as one line of text. Pure functions: no elements, no requests.

import { truncate } from "./dom.js";

const TERMINAL = new Set(["done", "failed", "cancelled"]);
const WAITS = {
  delay: "Waiting for its start time",
  backoff: "Waiting before the next attempt",
  limit: "Waiting for a usage limit to end",
  session: "Waiting for the running task of its session",
  directory: "Waiting for another task in its directory",
  slot: "Waiting for a free slot",
  agent: "Waiting for a running process with its agent",
  approval: "Waiting for an answer",
};

/** How a question ended, in words. */
export const ANSWER_TEXTS = { granted: "allowed", denied: "denied", expired: "not answered" };

/** Return the name of a channel as people know it. */
export const formatChannel = (name) => (name === "console" ? "server log" : name);

export const isOpen = (task) => !TERMINAL.has(task.status);
export const TASK_KINDS = new Set([
  "task_submitted", "task_started", "task_waiting", "task_interrupted", "task_rescued", "task_finished",
  "interrupt_received", "approval_resolved", "turn_start",
]);

/** Create a task from its first event. */
export function createTask(event) {
  const { payload } = event;
  return {
    id: event.task_id,
    status: "pending",
    outcome: null,
    prompt: payload.prompt ?? "",
    result: null,
    error: null,
    agent: payload.agent ?? event.agent_id ?? "",
    session_key: event.session_key ?? "",
    cause: payload.cause ?? "submit",
    priority: payload.priority ?? 0,
    creator: event.actor ?? null,
    attempt: 0,
    wait: null,
    stop_requested: null,
    retry_of: payload.retry_of ?? null,
    usage: null,
    created_at: event.time,
    due_at: payload.due_at ?? event.time,
    started_at: null,
    completed_at: null,
  };
}

/** Return the task after an event. A task that has ended does not change. */
export function applyEvent(task, event) {
  if (TERMINAL.has(task.status)) return task;
  const { kind, payload, time } = event;
  switch (kind) {
    case "task_started":
      return {
        ...task, status: "running", wait: null, stop_requested: null, started_at: time,
        attempt: event.attempt ?? task.attempt,
      };
    case "task_waiting":
      if (payload.wait === "approval") return { ...task, wait: "approval" };
      return { ...task, status: "pending", wait: payload.wait, due_at: payload.until ?? task.due_at };
    case "approval_resolved":
      return task.wait === "approval" ? { ...task, wait: null } : task;
    case "task_interrupted":
      return { ...task, status: "pending", stop_requested: null, wait: null };
    case "task_rescued":
      return ["resume", "rerun"].includes(payload.action) ? { ...task, status: "pending", wait: null } : task;
    case "interrupt_received":
      // other reasons are messages to the agent
      return !payload.reason || payload.reason === "cancel" ? { ...task, stop_requested: "cancel" } : task;
    case "task_finished":
      return {
        ...task,
        status: payload.status,
        outcome: payload.outcome,
        result: payload.result ?? task.result,
        error: payload.error ?? task.error,
        usage: payload.usage ?? task.usage,
        worktree: payload.worktree ?? task.worktree ?? null,
        completed_at: time,
        wait: null,
      };
    default:
      return task;
  }
}

/** Return the current status in one word. */
export function formatStatus(task) {
  if (task.status === "running" && task.stop_requested) return "stopping";
  if (task.status === "running" && task.wait === "approval") return "asking";
  if (task.status === "failed" && task.outcome && task.outcome !== "error") return task.outcome;
  if (task.status === "done" && ["silent", "skipped"].includes(task.outcome)) return task.outcome;
  return task.status;
}

/** Return why an open task is not running, or null. */
export const formatWait = (task) => (isOpen(task) && task.wait ? (WAITS[task.wait] ?? task.wait) : null);

const quote = (value, length = 120) =>
  truncate((typeof value === "string" ? value : (JSON.stringify(value) ?? "")).replace(/\s+/g, " ").trim(), length);

const capitalise = (text) => `${text ?? ""}`.replace(/^./, (letter) => letter.toUpperCase());
const formatCount = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const describeNotice = ({ notice, channel }) =>
  `the "${notice}" notice to the ${channel === "console" ? "server log" : `channel ${channel}`}`;

const LINES = {
  turn_start: (p) => `Turn started: ${quote(p.user_message)}`,
  turn_end: (p) => `Turn ended: ${p.status}`,
  llm_request: (p) => `Model request (${quote(p.model, 60)}), ${p.messages_count} messages`,
  llm_delta: (p) => `Model output: ${p.content_delta_len} characters`,
  llm_retry: (p) => `Model request is retried in ${Math.round(p.backoff)} s: ${quote(p.error)}`,
  llm_response: (p) => `Model reply${p.model ? ` (${quote(p.model, 60)})` : ""}`,
  thought_update: (p) => `Thought: ${quote(p.text)}`,
  thought_delta: () => "Thinking",
  plan_update: (p) => `Plan: ${(p.entries ?? []).filter((entry) => entry.status === "completed").length} of ` +
    `${(p.entries ?? []).length} done`,
  tool_exec_start: (p) => (p.title
    ? quote(p.title)
    : `Using ${p.tool}${p.arguments && Object.keys(p.arguments).length ? ` ${quote(p.arguments)}` : ""}`),
  tool_exec_end: (p) => `${p.tool} ${p.is_error ? "failed" : "returned"}${p.result ? `: ${quote(p.result)}` : ""}`,
  probe_start: (p) => `Command (${p.probe}): ${quote(p.command)}`,
  probe_end: (p) => `Command (${p.probe}) ended: ${p.exit_status ?? quote(p.error)}` +
    `${p.output ? `: ${quote(p.output)}` : ""}`,
  tool_exec_skipped: (p) => `${p.tool} was skipped: ${quote(p.reason)}`,
  hook_decided: (p) => `Hook ${p.hook}${p.failed ? " failed" : ""}: ${p.decision}${p.tool ? ` ${p.tool}` : ""}` +
    `${p.reason ? `: ${quote(p.reason)}` : ""}`,
  context_trimmed: (p) => `${formatCount(p.dropped_messages, "old message")} removed from the context of the model`,
  steering_injected: (p) => `${formatCount(p.count, "message")} delivered to the running turn`,
  budget_warned: (p) => `Budget nearly reached: ${p.budget} of the ${p.scope}, ${p.spent} of ${p.limit}`,
  context_injected: (p) => `${formatCount(p.count, "result")} of background work given to the agent`,
  budget_reached: (p) => `Budget reached: ${p.budget} of the ${p.scope}, ${p.spent} of ${p.limit}`,
  agent_exited: (p) => `Agent program ended${p.code === null ? "" : `: ${p.code}`}`,
  gap: (p) => (p.dropped ? `${formatCount(p.dropped, "live event")} left out` : "Older events were removed"),
  interrupt_received: (p) => ({
    stop: "Asked for a final answer", interrupt: "Message for the next step", after_tool: "Message for after the tool",
  })[p.reason] ?? `Stop requested: ${p.reason}`,
  error: (p) => `${capitalise(p.stage)}: ${quote(p.message)}`,
  agent_error: (p) => quote(p.message),
  message_update: (p) => `${capitalise(p.role)}: ${quote(p.message)}`,
  message_delta: () => "Writing its answer",
  screen_update: () => "Terminal screen updated",
  status_change: (p) => `Status: ${p.status}`,
  task_submitted: (p) => `Submitted to ${p.agent}: ${quote(p.prompt)}`,
  task_started: (p) => `Started with ${p.agent} on ${p.host}`,
  task_progress: (p) => `${quote(p.text)}${p.percent == null ? "" : ` (${Math.round(p.percent)} %)`}`,
  task_waiting: (p) => WAITS[p.wait] ?? `Waiting: ${p.wait}`,
  task_interrupted: (p) => `Interrupted: ${p.reason}`,
  task_rescued: (p) => `The process died: ${p.action}`,
  task_finished: (p) =>
    `${capitalise(p.status)}${p.outcome && p.outcome !== "ok" ? ` (${p.outcome})` : ""}` +
    `${p.error ? `: ${quote(p.error)}` : p.result ? `: ${quote(p.result)}` : ""}`,
  task_late: (p) => `A late result was ignored: ${p.outcome}`,
  approval_requested: (p) => `Question: ${quote(p.question)}`,
  approval_resolved: (p) =>
    `${capitalise(p.status)}${p.answer ? `: ${quote(p.answer)}` : ""}${p.why ? ` (${quote(p.why)})` : ""}`,
  rule_added: (p) => `Rule added: ${p.effect} for ${p.for_agent}`,
  rule_revoked: (p) => `Rule revoked: ${p.effect} for ${p.for_agent}`,
  worktree_changed: (p) =>
    `Branch ${p.branch} ${{ making: "is being created", kept: "is kept" }[p.status] ?? `was ${p.status}`}`,
  delivery_sent: (p) => `Sent ${describeNotice(p)}`,
  delivery_failed: (p) => `Could not send ${describeNotice(p)}: ${quote(p.error)}`,
  delivery_retried: (p) => (p.notice ? `Retrying ${describeNotice(p)}` : "Retrying a notice"),
  session_opened: (p) => `Session opened with ${p.agent}${p.title ? `: ${quote(p.title)}` : ""}`,
  automation_created: (p) => `Automation created: ${quote(p.title)}`,
  automation_changed: (p) => `Automation is ${p.status}; changed: ${(p.fields ?? []).join(", ")}`,
  automation_fired: (p) => `Automation run ${p.run} started`,
  automation_triggered: (p) => `Triggered: ${p.summary}${p.skipped ? `; skipped: ${p.skipped}` : ""}`,
  automation_missed: (p) => `${formatCount(p.count, "run")} ${{
    overlap: "skipped: the previous run is not finished", late: "skipped: too late",
    caught_up: "missed; one run starts now instead", day_off: "skipped: days off",
    quiet_hours: "moved to the end of the quiet hours, as one run",
  }[p.reason] ?? p.reason}`,
  automation_queued: (p) =>
    (p.replaces ? "The open run is cancelled; the due run replaces it" : "A due run waits for the end of the open run"),
  automation_paused: (p) => `Automation paused: ${quote(p.why)}`,
  goal_created: (p) => `Goal created: ${quote(p.objective)}`,
  goal_changed: (p) => `Goal is ${p.status}; changed: ${(p.fields ?? []).join(", ")}`,
  goal_step: (p) => ({ step: `Goal step ${p.step} started`, verify: "Goal verification started" }[p.work] ??
    "Goal wrap-up started"),
  goal_delayed: (p) => `Goal delayed: ${quote(p.reason)}`,
  goal_paused: (p) => `Goal paused: ${quote(p.why)}`,
  goal_completed: (p) => `Goal reached in ${formatCount(p.steps, "step")}${p.evidence ? `: ${quote(p.evidence)}` : ""}`,
  goal_timed_out: (p) => `Goal deadline passed after ${formatCount(p.steps, "step")}`,
  handoff_requested: (p) => `${p.from_agent} hands over to ${p.to_agent}: ${quote(p.description)}`,
  handoff_accepted: (p) => `${p.to_agent} accepted the handoff`,
  handoff_rejected: (p) => `${p.to_agent} refused the handoff: ${quote(p.reason)}`,
  handoff_started: (p) => `${p.to_agent} started the handoff`,
  handoff_retried: (p) => `${p.to_agent} retries the handoff, attempt ${p.attempt}`,
  handoff_completed: (p) => `${p.to_agent} completed the handoff`,
  handoff_failed: (p) => `Handoff to ${p.to_agent} failed: ${quote(p.error)}`,
  handoff_cancelled: (p) => `Handoff to ${p.to_agent} was cancelled: ${quote(p.reason)}`,
  handoff_expired: (p) => `Handoff to ${p.to_agent} did not end in time`,
  watchdog_alert: (p) => quote(p.text),
  watchdog_acknowledged: (p) => `Alert acknowledged: ${p.alert} ${p.subject}`,
  watchdog_withdrawn: (p) => `Alert over: ${p.alert} ${p.subject}`,
  token_created: (p) => `Token ${p.name} created (${p.role})`,
  token_revoked: (p) => `Token ${p.name} revoked`,
  signed_in: (p) => `Signed in (${p.role})`,
  session_closed: (p) => `Session closed: ${p.reason}`,
};

const LIVE = ["gap", "llm_delta", "message_delta", "screen_update", "thought_delta"];

/** The kinds of stored events, for the filter. */
export const KINDS = Object.keys(LINES).filter((kind) => !LIVE.includes(kind)).sort();

/** Return an event kind as text; a kind of a newer version is marked. */
export const formatKind = (kind) => (Object.hasOwn(LINES, kind) ? kind : `event_kind(${kind})`);

/** Return an event as one line of text. */
export function formatEvent(event) {
  const format = Object.hasOwn(LINES, event.kind) && LINES[event.kind];
  return format ? format(event.payload ?? {}) : quote(event.payload ?? {});
}

/** Return the colour of an event: bad, warn, good or plain. */
export function getTone(event) {
  const p = event.payload ?? {};
  if (event.kind === "task_finished") return p.status === "done" ? "good" : p.status === "failed" ? "bad" : "plain";
  if (["error", "delivery_failed", "task_rescued"].includes(event.kind) || p.is_error) return "bad";
  if (event.kind === "agent_error") return p.level === "warning" ? "warn" : "bad";
  if (event.kind === "hook_decided") return p.failed ? "bad" : "warn";
  if (event.kind === "probe_end") return p.error ? "bad" : "plain";
  if (event.kind === "goal_completed") return "good";
  if (event.kind === "goal_timed_out") return "bad";
  if (["automation_paused", "goal_paused", "automation_missed", "watchdog_alert"].includes(event.kind)) return "warn";
  if (event.kind.startsWith("approval_") || event.kind === "task_waiting") return "warn";
  return "plain";
}
