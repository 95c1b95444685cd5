// What events do to tasks, and how events read as a line of text. Pure: no elements, no requests.

import { cut } from "./dom.js";

const TERMINAL = new Set(["done", "failed", "cancelled"]);
const WAITS = {
  delay: "waits for its time",
  backoff: "waits before the next try",
  limit: "waits for the end of a usage limit",
  session: "waits for its session's running task",
  directory: "waits for another task in its directory",
  slot: "waits for a free slot",
  agent: "no live process has its agent",
  approval: "waits for an answer",
};

export const isOpen = (task) => !TERMINAL.has(task.status);
export const TASK_KINDS = new Set([
  "task_submitted", "task_started", "task_waiting", "task_interrupted", "task_rescued", "task_finished",
  "interrupt_received", "approval_resolved", "turn_start",
]);

/** A task as far as its first event tells. */
export function taskFrom(event) {
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

/** The task after the event. An ended task stays ended. */
export function after(task, event) {
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
      // the others are messages
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

/** What the status means right now, in a few words. */
export function statusText(task) {
  if (task.status === "running" && task.stop_requested) return "stopping";
  if (task.status === "running" && task.wait === "approval") return "asking";
  if (task.status === "failed" && task.outcome && task.outcome !== "error") return task.outcome;
  if (task.status === "done" && task.outcome === "silent") return "silent";
  return task.status;
}

/** Why an open task does not run, or null. */
export const waitText = (task) => (isOpen(task) && task.wait ? (WAITS[task.wait] ?? task.wait) : null);

const quoted = (value, length = 120) =>
  cut((typeof value === "string" ? value : (JSON.stringify(value) ?? "")).replace(/\s+/g, " ").trim(), length);

const LINES = {
  turn_start: (p) => `turn began: ${quoted(p.user_message)}`,
  turn_end: (p) => `turn ended: ${p.status}`,
  llm_request: (p) => `asks the model (${quoted(p.model, 60)}), ${p.messages_count} messages`,
  llm_delta: (p) => `the model writes: ${p.content_delta_len} characters`,
  llm_retry: (p) => `the model is asked again in ${Math.round(p.backoff)} s: ${quoted(p.error)}`,
  llm_response: (p) => `the model answered${p.model ? ` (${quoted(p.model, 60)})` : ""}`,
  thought_update: (p) => `thought: ${quoted(p.text)}`,
  thought_delta: () => "thinks",
  plan_update: (p) =>
    `plan: ${(p.entries ?? []).filter((one) => one.status === "completed").length} of ${(p.entries ?? []).length} done`,
  tool_exec_start: (p) => (p.title
    ? quoted(p.title)
    : `uses ${p.tool}${p.arguments && Object.keys(p.arguments).length ? ` ${quoted(p.arguments)}` : ""}`),
  tool_exec_end: (p) => `${p.tool} ${p.is_error ? "failed" : "returned"}${p.result ? `: ${quoted(p.result)}` : ""}`,
  tool_exec_skipped: (p) => `${p.tool} was not run: ${quoted(p.reason)}`,
  context_trimmed: (p) => `${p.dropped_messages} old messages are not shown to the model`,
  steering_injected: (p) => `${p.count === 1 ? "a message has" : `${p.count} messages have`} reached the running turn`,
  budget_reached: (p) => `spent: ${p.budget} of the ${p.scope}, ${p.spent} of ${p.limit}`,
  agent_exited: (p) => `the agent's program ended${p.code === null ? "" : `: ${p.code}`}`,
  gap: (p) => (p.dropped ? `${p.dropped} live events were left out` : "older events are gone"),
  interrupt_received: (p) => ({
    stop: "asked to close with an answer", interrupt: "has a message for its next step",
    after_tool: "has a message for after its tool",
  })[p.reason] ?? `asked to stop: ${p.reason}`,
  error: (p) => `${p.stage}: ${quoted(p.message)}`,
  agent_error: (p) => quoted(p.message),
  message_update: (p) => `${p.role}: ${quoted(p.message)}`,
  message_delta: () => "writes its answer",
  screen_update: () => "draws on its screen",
  status_change: (p) => `is ${p.status}`,
  task_submitted: (p) => `submitted to ${p.agent}: ${quoted(p.prompt)}`,
  task_started: (p) => `started with ${p.agent} on ${p.host}`,
  task_progress: (p) => `${quoted(p.text)}${p.percent == null ? "" : ` (${Math.round(p.percent)} %)`}`,
  task_waiting: (p) => WAITS[p.wait] ?? `waits: ${p.wait}`,
  task_interrupted: (p) => `interrupted: ${p.reason}`,
  task_rescued: (p) => `its process died: ${p.action}`,
  task_finished: (p) =>
    `${p.status}${p.outcome && p.outcome !== "ok" ? ` (${p.outcome})` : ""}` +
    `${p.error ? `: ${quoted(p.error)}` : p.result ? `: ${quoted(p.result)}` : ""}`,
  task_late: (p) => `a late ${p.outcome} was not used`,
  approval_requested: (p) => `asks: ${quoted(p.question)}`,
  approval_resolved: (p) =>
    `${p.status}${p.answer ? `: ${quoted(p.answer)}` : ""}${p.why ? ` (${quoted(p.why)})` : ""}`,
  rule_added: (p) => `a standing rule: ${p.effect} for ${p.for_agent}`,
  rule_revoked: (p) => `a standing rule was taken back: ${p.effect} for ${p.for_agent}`,
  worktree_changed: (p) =>
    `branch ${p.branch} ${{ making: "is being made", kept: "is kept" }[p.status] ?? `was ${p.status}`}`,
  delivery_sent: (p) => `${p.notice} sent to ${p.channel}`,
  delivery_failed: (p) => `${p.notice} not sent to ${p.channel}: ${quoted(p.error)}`,
  delivery_retried: (p) => `${p.notice ?? "notice"} to ${p.channel ?? "its channel"} is tried again`,
  session_opened: (p) => `session with ${p.agent}${p.title ? `: ${quoted(p.title)}` : ""}`,
  automation_created: (p) => `automation made: ${quoted(p.title)}`,
  automation_changed: (p) => `automation is ${p.status}; changed: ${(p.fields ?? []).join(", ")}`,
  automation_fired: (p) => `automation's run ${p.run}`,
  automation_missed: (p) =>
    `${p.count === 1 ? "a run was" : `${p.count} runs were`} ${{
      overlap: "left out: the one before still runs",
      late: "left out: too late",
      caught_up: "late and made up for",
    }[p.reason] ?? p.reason}`,
  automation_paused: (p) => `automation paused: ${quoted(p.why)}`,
  goal_created: (p) => `goal set: ${quoted(p.objective)}`,
  goal_changed: (p) => `goal is ${p.status}; changed: ${(p.fields ?? []).join(", ")}`,
  goal_step: (p) => (p.work === "step" ? `step ${p.step} of the goal`
    : p.work === "verify" ? "the goal is verified"
    : "the goal is wrapped up"),
  goal_delayed: (p) => `the goal waits: ${quoted(p.reason)}`,
  goal_paused: (p) => `goal paused: ${quoted(p.why)}`,
  goal_completed: (p) => `goal reached in ${p.steps} steps${p.evidence ? `: ${quoted(p.evidence)}` : ""}`,
  goal_timed_out: (p) => `the goal's deadline passed after ${p.steps} steps`,
  handoff_requested: (p) => `${p.from_agent} hands over to ${p.to_agent}: ${quoted(p.description)}`,
  handoff_accepted: (p) => `${p.to_agent} takes it over`,
  handoff_rejected: (p) => `${p.to_agent} refused to take over: ${quoted(p.reason)}`,
  handoff_started: (p) => `${p.to_agent} begins on what was handed over`,
  handoff_retried: (p) => `${p.to_agent} tries again, attempt ${p.attempt}`,
  handoff_completed: (p) => `${p.to_agent} is done with what was handed over`,
  handoff_failed: (p) => `handing over to ${p.to_agent} failed: ${quoted(p.error)}`,
  handoff_cancelled: (p) => `handing over to ${p.to_agent} was cancelled: ${quoted(p.reason)}`,
  handoff_expired: (p) => `${p.to_agent} did not end in time`,
  watchdog_alert: (p) => quoted(p.text),
  token_created: (p) => `token ${p.name} (${p.role})`,
  token_revoked: (p) => `token ${p.name} revoked`,
  signed_in: (p) => `signed in (${p.role})`,
  session_closed: (p) => `session closed: ${p.reason}`,
};

const LIVE = ["gap", "llm_delta", "message_delta", "screen_update", "thought_delta"];

/** The kinds that are stored, for choosing. */
export const KINDS = Object.keys(LINES).filter((kind) => !LIVE.includes(kind)).sort();

/** A kind as people read it; one that only a newer version knows is told to be such. */
export const kindText = (kind) => (Object.hasOwn(LINES, kind) ? kind : `event_kind(${kind})`);

/** An event as one line. */
export function line(event) {
  const made = Object.hasOwn(LINES, event.kind) && LINES[event.kind];
  return made ? made(event.payload ?? {}) : quoted(event.payload ?? {});
}

/** How an event looks: bad, warn, good or plain. */
export function tone(event) {
  const p = event.payload ?? {};
  if (event.kind === "task_finished") return p.status === "done" ? "good" : p.status === "failed" ? "bad" : "plain";
  if (["error", "delivery_failed", "task_rescued"].includes(event.kind) || p.is_error) return "bad";
  if (event.kind === "agent_error") return p.level === "warning" ? "warn" : "bad";
  if (event.kind === "goal_completed") return "good";
  if (event.kind === "goal_timed_out") return "bad";
  if (["automation_paused", "goal_paused", "automation_missed", "watchdog_alert"].includes(event.kind)) return "warn";
  if (event.kind.startsWith("approval_") || event.kind === "task_waiting") return "warn";
  return "plain";
}
