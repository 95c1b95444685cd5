import { isSpent, sumSpent } from "/web/budget.js";
import { at, equal } from "./check.js";

const START = "2026-01-01T00:00:00Z";
const LATER = "2026-01-01T00:00:30Z";
const running = { status: "running", attempt: 2, started_at: START };
const createEvent = (kind, attempt, usage) => ({ kind, attempt, payload: { usage } });

export default {
  "the usage of an ended task is that of its record and of earlier attempts": () => {
    const task = { status: "done", usage: { input_tokens: 5, output_tokens: 2, cost_usd: 0.5, steps: 1, seconds: 9 },
      budget: { tokens: 10, before: { tokens: 100, seconds: 1 } } };
    equal(sumSpent(task, [createEvent("llm_response", 1, { input_tokens: 1000 })]),
      { tokens: 107, usd: 0.5, steps: 1, seconds: 10 });
  },

  "a running task counts the events of its own attempt": () => {
    const events = [
      createEvent("llm_response", 1, { input_tokens: 1000 }),
        createEvent("llm_response", 2, { input_tokens: 7, cost_usd: 1 }),
      createEvent("tool_exec_end", 2), createEvent("tool_exec_start", 2),
    ];
    equal(at(LATER, () => sumSpent(running, events)), { tokens: 7, usd: 1, steps: 2, seconds: 30 });
  },

  "a slow clock never reduces the time used": () => {
    equal(at("2025-12-31T23:59:00Z", () => sumSpent(running).seconds), 0);
  },

  "a waiting task uses no time": () => {
    equal(at(LATER, () => sumSpent({ ...running, status: "pending" }).seconds), 0);
  },

  "a budget is spent when a limit is reached, and never without a limit": () => {
    const task = (tokens, budget) => ({ status: "failed", usage: { input_tokens: tokens }, budget });
    equal([
      isSpent(task(9, { tokens: 10 })), isSpent(task(10, { tokens: 10 })), isSpent(task(99, { tokens: 0, usd: 1 })),
      isSpent(task(99, null)), isSpent({ status: "failed" }),
    ], [false, true, false, false, false]);
  },
};
