import { collectSpans, collectTree } from "/web/spans.js";
import { equal } from "./check.js";

/** Return events with one second between them. */
const makeEvents = (...events) => events.map(([kind, payload = {}, more = {}], at) =>
  ({ kind, payload, seq: at + 1, time: new Date(at * 1000).toISOString(), ...more }));
const spans = (...events) => collectSpans(makeEvents(...events))
  .map(({ label, from, to, bad }) => `${label} ${from / 1000}-${to === null ? "" : to / 1000}${bad ? " bad" : ""}`);

export default {
  "an attempt contains its turn, calls and tools": () => {
    equal(spans(["task_submitted"], ["task_started", {}, { attempt: 3 }], ["turn_start"],
      ["llm_request", { request_id: "r", model: "m" }], ["llm_response", { request_id: "r" }],
      ["tool_exec_start", { tool: "ls", tool_call_id: "c", title: "List" }], ["tool_exec_end", { tool_call_id: "c" }],
      ["turn_end", { status: "completed" }], ["task_finished", { status: "done" }]),
    ["queued 0-1", "attempt 3 1-8", "turn 2-7", "m 3-4", "List 5-6"]);
  },

  "a running span has no end": () => {
    equal(spans(["task_started"], ["turn_start"]), ["attempt 1 0-", "turn 1-"]);
    equal(spans(), []);
  },

  "an end without a start makes no span": () => {
    equal(spans(["turn_end", { status: "error" }], ["tool_exec_end", { tool: "ls" }], ["approval_resolved"]), []);
  },

  "failed spans are marked, also those that fail with their task": () => {
    equal(spans(["task_started"], ["tool_exec_start", { tool: "ls" }],
      ["tool_exec_end", { tool: "ls", is_error: true }],
      ["tool_exec_start", { tool: "cat" }], ["task_finished", { status: "failed" }]),
    ["attempt 1 0-4 bad", "ls 1-2 bad", "cat 3-4 bad"]);
    equal(
      spans(["turn_start"], ["turn_end", { status: "timeout" }], ["turn_start"], ["turn_end", { status: "aborted" }]),
      ["turn 0-1 bad", "turn 2-3"]);
  },

  "no span runs after the end, even if two of one name started": () => {
    equal(spans(["task_started"], ["tool_exec_start", { tool: "ls" }], ["tool_exec_start", { tool: "ls" }],
      ["tool_exec_end", { tool: "ls" }], ["task_started"], ["task_finished", { status: "done" }]),
    ["attempt 1 0-4", "ls 1-2", "ls 2-3", "attempt 1 4-5"]);
  },

  "a question is part of its attempt, and other waits end the attempt": () => {
    equal(spans(["task_started"], ["approval_requested", { approval_id: "a" }], ["task_waiting", { wait: "approval" }],
      ["approval_resolved", { approval_id: "a" }], ["task_waiting", { wait: "limit" }], ["task_started"]),
    ["attempt 1 0-4", "waiting for an answer 1-3", "limit 4-5", "attempt 1 5-"]);
  },

  "an interrupted or recovered task waits again": () => {
    equal(spans(["task_started"], ["task_interrupted", { reason: "shutdown" }], ["task_started"],
      ["task_rescued", { action: "rerun" }], ["task_started"], ["task_rescued", { action: "fail" }]),
    ["attempt 1 0-1", "interrupted: shutdown 1-2", "attempt 1 2-3 bad", "rescued 3-4", "attempt 1 4-5 bad"]);
  },

  "work that grew out of a task is nested under the step that started it": () => {
    const child = { task_id: "c", agent_id: "helper", source: "delegate", parent_turn_id: "r.1", trace_path: "r/c" };
    const last = { task_id: "l", agent_id: "late", source: "background", parent_turn_id: "c.1", trace_path: "r/c/l" };
    const all = makeEvents(["task_started", {}, { task_id: "r" }], ["turn_start", {}, { task_id: "r", turn_id: "r.1" }],
      ["tool_exec_start", { tool: "ask" }, { task_id: "r", turn_id: "r.1" }], ["task_submitted", {}, child],
      ["tool_exec_start", { tool: "other" }, { task_id: "r", turn_id: "r.1" }], ["task_started", {}, child],
      ["turn_start", {}, { ...child, turn_id: "c.1" }], ["task_submitted", {}, last], ["turn_end", {}, child],
      ["task_finished", { status: "failed" }, child], ["tool_exec_end", { tool: "ask" }, { task_id: "r" }],
      ["task_submitted", {}, { task_id: "x", source: "retry", parent_turn_id: "y.1", trace_path: "y/x" }]);
    const works = new Map(["l", "r", "x", "c"].map((id) => [id, all.filter((event) => event.task_id === id)]));
    const show = (folded) => collectTree("r", works, folded).map(({ label, depth, to, bad }) =>
      `${depth} ${label}${to === null ? " open" : ""}${bad ? " bad" : ""}`);
    equal(show(), ["0 attempt 1 open", "1 turn open", "2 ask", "3 helper, delegate bad", "4 turn",
      "5 late, background open", "2 other open"]);
    equal(show(new Set(["c"])), ["0 attempt 1 open", "1 turn open", "2 ask", "3 helper, delegate bad", "2 other open"]);
    equal(collectTree("l", works).map((span) => span.label), ["queued"]);
    equal(collectTree("none", works), []);
  },

  "work of a long path, or of a step that is not known, is nested under the task": () => {
    const far = { task_id: "f", agent_id: "a", source: "retry", parent_turn_id: "z.1", trace_path: "r/.../f" };
    const all = makeEvents(["task_submitted", {}, { task_id: "r" }], ["task_started", {}, { task_id: "r" }],
      ["task_submitted", {}, far]);
    const works = new Map(["r", "f"].map((id) => [id, all.filter((event) => event.task_id === id)]));
    equal(collectTree("r", works).map(({ label, depth }) => `${depth} ${label}`),
      ["0 queued", "0 attempt 1", "1 a, retry"]);
  },

  "each span has a unique key": () => {
    const events = makeEvents(["turn_start"], ["turn_end"], ["turn_start"], ["turn_start"]);
    const keys = collectSpans(events).map((one) => one.key);
    equal(new Set(keys).size, 3);
  },
};
