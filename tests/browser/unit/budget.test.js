import { formatAccount, formatSpent, isSpent, nestTasks, readOwnSpent, sumSpent } from "/web/budget.js";
import { at, equal } from "./check.js";

const START = "2026-01-01T00:00:00Z";
const READ = "2026-01-01T00:00:10Z";
const LATER = "2026-01-01T00:00:30Z";
const running = { status: "running", started_at: START };
const account = { limits: { tokens: 10 }, tokens: 100, usd: 0.5, steps: 1, seconds: 9, read_at: Date.parse(READ) };
const createEvent = (kind, time, usage) => ({ kind, time, payload: { usage } });

export default {
  "the usage of an ended task is that of its account": () => {
    equal(sumSpent({ status: "done" }, account, [createEvent("llm_response", LATER, { input_tokens: 1000 })]),
      { tokens: 100, usd: 0.5, steps: 1, seconds: 9 });
  },

  "a running task adds the events since its account was read": () => {
    const events = [
      createEvent("llm_response", START, { input_tokens: 1000 }),
      createEvent("llm_response", LATER, { input_tokens: 7, cost_usd: 1 }),
      createEvent("tool_exec_end", LATER), createEvent("tool_exec_start", LATER),
    ];
    equal(at(LATER, () => sumSpent(running, account, events)), { tokens: 107, usd: 1.5, steps: 3, seconds: 29 });
  },

  "a slow clock never reduces the time used": () => {
    equal(at("2025-12-31T23:59:00Z", () => sumSpent(running, account).seconds), 9);
  },

  "a waiting task uses no time": () => {
    equal(at(LATER, () => sumSpent({ ...running, status: "pending" }, account).seconds), 9);
  },

  "a budget is spent when a limit is reached, and never without a limit": () => {
    equal([
      isSpent({ limits: { tokens: 10 }, tokens: 9 }), isSpent({ limits: { tokens: 10 }, tokens: 10 }),
      isSpent({ limits: { tokens: 0, usd: 1 }, tokens: 99, usd: 0 }), isSpent({ limits: {}, tokens: 99 }),
      isSpent(undefined),
    ], [false, true, false, false, false]);
  },

  "a cost that nobody reported is unknown, never zero": () => {
    const unknown = { ...account, usd: null };
    const free = createEvent("llm_response", LATER, { input_tokens: 7 });
    const priced = createEvent("llm_response", LATER, { input_tokens: 7, cost_usd: 1 });
    equal(at(LATER, () => [
      formatSpent({ tokens: 950, usd: null }), isSpent({ limits: { usd: 1 }, usd: null }),
      sumSpent(running, unknown, [free]).usd, sumSpent(running, unknown, [free, priced]).usd,
      readOwnSpent({ input_tokens: 5 }).usd, readOwnSpent({ input_tokens: 5, cost_usd: 0 }).usd,
    ]), ["950 tokens · cost unknown", false, null, 1, null, 0]);
  },

  "an account is named after its work or its day, and unknown amounts are left out": () => {
    equal([
      formatAccount({ id: "t_1", scope: "task", title: "Tidy up\nall of it" }),
      formatAccount({ id: "day:2026-01-01", scope: "day", title: "day:2026-01-01" }),
      formatAccount({ id: "day:2026-01-01:a", scope: "day" }),
      formatSpent({ tokens: 950, usd: 0, steps: 2, seconds: 65 }), formatSpent({ tokens: 0 }),
    ], ["Tidy up", "Day 2026-01-01", "Day 2026-01-01, agent a", "950 tokens · 2 steps · 1 m 05 s worked", ""]);
  },

  "tasks are nested below those they grew out of, and no task is lost": () => {
    const tasks = [
      { id: "a", parent_id: null }, { id: "b", parent_id: "a" }, { id: "c", parent_id: "a" },
      { id: "d", parent_id: "b" }, { id: "e", parent_id: "not listed" },
    ];
    equal(nestTasks(tasks).map(({ id, depth }) => `${depth}${id}`), ["0a", "1b", "2d", "1c", "0e"]);
  },

  "the own usage of a task is counted in all forms that agents report": () => {
    equal([
      readOwnSpent({ input_tokens: 5, output_tokens: 2, cost_usd: 0.5, steps: 1, seconds: 9 }),
      readOwnSpent({ tokens: 7, usd: 0.5 }), readOwnSpent(null),
    ], [
      { tokens: 7, usd: 0.5, steps: 1, seconds: 9 }, { tokens: 7, usd: 0.5, steps: 0, seconds: 0 },
      { tokens: 0, usd: 0, steps: 0, seconds: 0 },
    ]);
  },
};
