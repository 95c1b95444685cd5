import {
  applyEvent, createTask, formatEvent, formatKind, formatStatus, formatWait, getTone, isOpen, KINDS,
} from "/web/model.js";
import { each, equal } from "./check.js";

const task = { id: "t_1", status: "running", wait: null, stop_requested: null, attempt: 1, result: null, error: null };
const event = (kind, payload = {}, more = {}) => ({ kind, payload, time: "2026-01-01T00:00:00Z", ...more });
const finished = event("task_finished", { status: "done", outcome: "ok", result: "all well" });

/** Return these fields of a task after the events. */
const through = (names, ...events) => {
  const ended = events.reduce(applyEvent, task);
  return names.map((name) => ended[name]);
};

export default {
  "a task is created from its first event": () => {
    const task = createTask(event("task_submitted", { prompt: "do it", agent: "demo" },
      { task_id: "t_2", actor: "anna" }));
    equal([task.id, task.status, task.prompt, task.agent, task.creator, task.cause, task.due_at],
      ["t_2", "pending", "do it", "demo", "anna", "submit", "2026-01-01T00:00:00Z"]);
    equal([createTask(event("task_started", {}, { agent_id: "echo" })).agent, isOpen(task)], ["echo", true]);
  },

  "an ended task is not changed by late events": () => {
    const late = [event("task_started", {}, { attempt: 2 }), event("task_waiting", { wait: "slot" }),
      event("task_finished", { status: "failed", outcome: "error" }), event("task_rescued", { action: "rerun" })];
    equal(through(["status", "outcome", "result", "attempt"], finished, ...late), ["done", "ok", "all well", 1]);
  },

  "applying an event twice has the effect of one": () => {
    const events = [event("task_interrupted", { reason: "shutdown" }), event("task_started", {}, { attempt: 2 })];
    equal(events.flatMap((repeated) => [repeated, repeated]).reduce(applyEvent, task), events.reduce(applyEvent, task));
  },

  "a task with a question stays running, and other waits end its attempt": () => {
    equal(through(["status", "wait"], event("task_waiting", { wait: "approval" })), ["running", "approval"]);
    equal(through(["status", "wait"], event("task_waiting", { wait: "approval" }), event("approval_resolved")),
      ["running", null]);
    equal(
      through(["status", "wait", "due_at"], event("task_waiting", { wait: "limit", until: "2026-01-02T00:00:00Z" })),
      ["pending", "limit", "2026-01-02T00:00:00Z"]);
    equal(through(["wait"], event("task_waiting", { wait: "slot" }), event("approval_resolved")), ["slot"]);
  },

  "a stop request applies to its own attempt only": () => {
    equal(through(["stop_requested"], event("interrupt_received", { reason: "cancel" })), ["cancel"]);
    equal(through(["stop_requested"], event("interrupt_received")), ["cancel"]);
    equal(through(["stop_requested"], event("interrupt_received", { reason: "after_tool" })), [null]);
    equal(
      through(["stop_requested", "attempt"], event("interrupt_received"), event("task_started", {}, { attempt: 2 })),
      [null, 2]);
  },

  "a recovered task continues or fails": () => {
    equal(through(["status"], event("task_rescued", { action: "rerun" })), ["pending"]);
    equal(through(["status"], event("task_rescued", { action: "fail" })), ["running"]);
  },

  "an end without a text keeps the known values": () => {
    const before = { ...task, result: "so far", usage: { steps: 2 } };
    const ended = applyEvent(before, event("task_finished", { status: "cancelled", outcome: "cancelled" }));
    equal([ended.status, ended.result, ended.usage, ended.wait], ["cancelled", "so far", { steps: 2 }, null]);
  },

  "applying an event does not change the original task": () => {
    const kept = Object.freeze({ ...task });
    for (const kind of ["task_started", "task_waiting", "task_interrupted", "task_finished"])
      applyEvent(kept, event(kind));
    equal(kept, task);
  },

  "a status is described in words": () => {
    each([
      [{ status: "running" }, "running"], [{ status: "running", wait: "approval" }, "asking"],
      [{ status: "running", wait: "approval", stop_requested: "cancel" }, "stopping"],
      [{ status: "failed", outcome: "error" }, "failed"], [{ status: "failed", outcome: "timeout" }, "timeout"],
      [{ status: "failed", outcome: null }, "failed"], [{ status: "done", outcome: "silent" }, "silent"],
      [{ status: "pending", stop_requested: "cancel" }, "pending"],
    ], formatStatus);
  },

  "only an open task waits, and an unknown reason is shown unchanged": () => {
    equal(formatWait({ status: "done", wait: "slot" }), null);
    equal(formatWait({ status: "pending", wait: "slot" }), "Waiting for a free slot");
    equal(formatWait({ status: "pending", wait: "weather" }), "weather");
  },

  "an event of an unknown kind is marked as one of a newer version": () => {
    equal(formatKind("constructor"), "event_kind(constructor)");
    equal(formatEvent({ kind: "toString", payload: { a: 1 } }), '{"a":1}');
    equal(formatEvent({ kind: "unheard_of" }), "{}");
    equal([KINDS.includes("gap"), KINDS.includes("task_started")], [false, true]);
  },

  "an event is shown on one line, and no character is split": () => {
    equal(formatEvent(event("agent_error", { message: " one\n\ttwo  three " })), "one two three");
    const cut = formatEvent(event("agent_error", { message: "😀".repeat(200) }));
    equal([cut.isWellFormed(), cut.endsWith("😀…"), cut.length <= 120], [true, true, true]);
    equal(formatEvent(event("agent_error", { message: "x".repeat(120) })), "x".repeat(120));
  },

  "numbers in a line have words": () => {
    equal(formatEvent(event("steering_injected", { count: 1 })), "1 message delivered to the running turn");
    equal(formatEvent(event("context_injected", { count: 2 })), "2 results of background work given to the agent");
    equal(formatEvent(event("automation_missed", { count: 2, reason: "late" })), "2 runs skipped: too late");
    equal(formatEvent(event("plan_update", { entries: [{ status: "completed" }, { status: "pending" }] })),
      "Plan: 1 of 2 done");
    equal(formatEvent(event("plan_update")), "Plan: 0 of 0 done");
    equal(formatEvent(event("tool_exec_start", { tool: "ls", arguments: {} })), "Using ls");
    equal(formatEvent(event("task_finished",
      { status: "failed", outcome: "timeout", error: "too late", result: "half" })),
      "Failed (timeout): too late");
  },

  "ends, errors and questions have their tones": () => {
    each([
      [finished, "good"], [event("task_finished", { status: "failed" }), "bad"],
      [event("task_finished", { status: "cancelled" }), "plain"], [event("agent_error", { level: "warning" }), "warn"],
      [event("agent_error"), "bad"], [event("tool_exec_end", { is_error: true }), "bad"],
      [event("approval_requested"), "warn"], [{ kind: "task_started" }, "plain"],
    ], getTone);
  },
};
