import { collectSpans } from "/web/waterfall.js";
import { equal } from "./check.js";

/** Events a second apart. */
const told = (...events) => events.map(([kind, payload = {}, more = {}], at) =>
  ({ kind, payload, seq: at + 1, time: new Date(at * 1000).toISOString(), ...more }));
const drawn = (...events) => collectSpans(told(...events))
  .map(({ label, from, to, bad }) => `${label} ${from / 1000}-${to === null ? "" : to / 1000}${bad ? " bad" : ""}`);

export default {
  "an attempt holds its turn, calls and tools": () => {
    equal(drawn(["task_submitted"], ["task_started", {}, { attempt: 3 }], ["turn_start"],
      ["llm_request", { request_id: "r", model: "m" }], ["llm_response", { request_id: "r" }],
      ["tool_exec_start", { tool: "ls", tool_call_id: "c", title: "List" }], ["tool_exec_end", { tool_call_id: "c" }],
      ["turn_end", { status: "completed" }], ["task_finished", { status: "done" }]),
    ["queued 0-1", "attempt 3 1-8", "turn 2-7", "m 3-4", "List 5-6"]);
  },

  "what goes on has no end": () => {
    equal(drawn(["task_started"], ["turn_start"]), ["attempt 1 0-", "turn 1-"]);
    equal(drawn(), []);
  },

  "an end without a beginning is nothing": () => {
    equal(drawn(["turn_end", { status: "error" }], ["tool_exec_end", { tool: "ls" }], ["approval_resolved"]), []);
  },

  "what fails is bad, and so is all that fails with its task": () => {
    equal(drawn(["task_started"], ["tool_exec_start", { tool: "ls" }],
      ["tool_exec_end", { tool: "ls", is_error: true }],
      ["tool_exec_start", { tool: "cat" }], ["task_finished", { status: "failed" }]),
    ["attempt 1 0-4 bad", "ls 1-2 bad", "cat 3-4 bad"]);
    equal(
      drawn(["turn_start"], ["turn_end", { status: "timeout" }], ["turn_start"], ["turn_end", { status: "aborted" }]),
      ["turn 0-1 bad", "turn 2-3"]);
  },

  "nothing goes on after the end, though two of one name began": () => {
    equal(drawn(["task_started"], ["tool_exec_start", { tool: "ls" }], ["tool_exec_start", { tool: "ls" }],
      ["tool_exec_end", { tool: "ls" }], ["task_started"], ["task_finished", { status: "done" }]),
    ["attempt 1 0-4", "ls 1-2", "ls 2-3", "attempt 1 4-5"]);
  },

  "a question is waited for within the attempt, other waits end it": () => {
    equal(drawn(["task_started"], ["approval_requested", { approval_id: "a" }], ["task_waiting", { wait: "approval" }],
      ["approval_resolved", { approval_id: "a" }], ["task_waiting", { wait: "limit" }], ["task_started"]),
    ["attempt 1 0-4", "waiting for an answer 1-3", "limit 4-5", "attempt 1 5-"]);
  },

  "what was interrupted or rescued waits again": () => {
    equal(drawn(["task_started"], ["task_interrupted", { reason: "shutdown" }], ["task_started"],
      ["task_rescued", { action: "rerun" }], ["task_started"], ["task_rescued", { action: "fail" }]),
    ["attempt 1 0-1", "interrupted: shutdown 1-2", "attempt 1 2-3 bad", "rescued 3-4", "attempt 1 4-5 bad"]);
  },

  "each has a key of its own": () => {
    const keys = collectSpans(told(["turn_start"], ["turn_end"], ["turn_start"], ["turn_start"])).map((one) => one.key);
    equal(new Set(keys).size, 3);
  },
};
