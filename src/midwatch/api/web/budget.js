// What a task may spend and has spent: bars, and the question for more.

import { post } from "./api.js";
import { onward } from "./app.js";
import { h, keyed, wishKey } from "./dom.js";
import { dollars, tokens } from "./figures.js";
import { isOpen } from "./model.js";
import { ask, field, toast } from "./parts.js";
import { meter, updateMeter } from "./automation-parts.js";
import { length, now, span } from "./time.js";

const LIMITS = {
  tokens: (amount) => `${tokens(amount)} tokens`,
  usd: (amount) => dollars(amount),
  steps: (amount) => `${amount} ${amount === 1 ? "step" : "steps"}`,
  seconds: (amount) => `${length(amount)} at work`,
};

const limitsOf = (task) => Object.keys(LIMITS).filter((name) => task.budget?.[name] > 0);

/** What the task has spent by its record and, while it runs, by the events of its attempt; tries before it count. */
export function spentBy(task, events = []) {
  const used = task.usage ?? {};
  const spent = {
    tokens: (used.input_tokens ?? 0) + (used.output_tokens ?? 0), usd: used.cost_usd ?? 0, steps: used.steps ?? 0,
    seconds: used.seconds ?? 0,
  };
  for (const name of Object.keys(spent)) spent[name] += task.budget?.before?.[name] ?? 0;
  if (!isOpen(task) || task.status !== "running") return spent;
  for (const { kind, attempt, payload } of events) {
    if (attempt !== task.attempt || !["llm_response", "tool_exec_end"].includes(kind)) continue;
    spent.steps += 1;
    spent.tokens += (payload.usage?.input_tokens ?? 0) + (payload.usage?.output_tokens ?? 0);
    spent.usd += payload.usage?.cost_usd ?? 0;
  }
  spent.seconds += Math.max(0, (now() - Date.parse(task.started_at)) / 1000);
  return spent;
}

/** A bar for each limit. */
export function drawBudget(node, task, events) {
  const names = limitsOf(task);
  const spent = spentBy(task, events);
  node.hidden = !names.length;
  keyed(node, names, (name) => name, (name) => meter(name), (bar, name) => {
    updateMeter(bar, spent[name], task.budget[name],
      `${LIMITS[name](spent[name])} of ${LIMITS[name](task.budget[name])}`, isOpen(task));
  });
}

/** Whether it can go on only with a larger budget. */
export function isSpent(task) {
  const spent = spentBy(task);
  return limitsOf(task).some((name) => spent[name] >= task.budget[name]);
}

/** Asks for a larger budget, and goes on with it. */
export function askMore(task) {
  const spent = spentBy(task);
  const key = wishKey();
  const inputs = limitsOf(task).map((name) => {
    const over = spent[name] >= task.budget[name];
    let more = task.budget[name];
    while (over && more <= spent[name]) more *= 2;
    const value = name === "seconds" ? span(more) : String(more);
    return field(`Most ${name === "usd" ? "dollars" : name}`, h("input.num", { name, value, autocomplete: "off" }),
      `${LIMITS[name](spent[name])} spent so far, which counts.`);
  });
  ask("Go on with a larger budget", inputs, "Go on", async (said) => {
    const budget = Object.fromEntries(Object.entries(said)
      .map(([name, value]) => [name, name === "seconds" ? value.trim() : Number(value)]));
    const lead = onward();
    const made = await post(`/tasks/${task.id}/retry`, { budget }, { key });
    toast("It goes on.");
    lead(`/tasks/${made.id}`);
  });
}
