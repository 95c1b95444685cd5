// The budget of a task: bars for what is used, and a form for a larger budget.

import { post } from "./api.js";
import { createNavigator } from "./app.js";
import { createRequestKey, h, renderKeyed } from "./dom.js";
import { formatDollars, formatTokens } from "./figures.js";
import { isOpen } from "./model.js";
import { createField, openForm, showToast } from "./parts.js";
import { createMeter, updateMeter } from "./automation-parts.js";
import { formatInterval, formatPeriod, now } from "./time.js";

// name of each limit: format of an amount, unit, label of its field
const LIMITS = {
  tokens: [formatTokens, " tokens", "Maximum tokens"], usd: [formatDollars, "", "Maximum dollars"],
  steps: [String, " steps", "Maximum steps"], seconds: [formatPeriod, " worked", "Maximum work time"],
};

const listLimits = (task) => Object.keys(LIMITS).filter((name) => task.budget?.[name] > 0);

/** Sum what a task has used: by its record, by earlier tries and, while it runs, by the events of its attempt. */
export function sumSpent(task, events = []) {
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

/** Show a bar for each limit. */
export function drawBudget(node, task, events) {
  const names = listLimits(task);
  const spent = sumSpent(task, events);
  node.hidden = !names.length;
  renderKeyed(node, names, (name) => name, (name) => createMeter(name), (bar, name) => {
    const [format, unit] = LIMITS[name];
    updateMeter(bar, spent[name], task.budget[name],
      `${format(spent[name])} of ${format(task.budget[name])}${unit}`, isOpen(task));
  });
}

/** Return whether the task can continue only with a larger budget. */
export function isSpent(task) {
  const spent = sumSpent(task);
  return listLimits(task).some((name) => spent[name] >= task.budget[name]);
}

/** Ask for a larger budget, then continue the task with it. */
export function openBudgetForm(task) {
  const spent = sumSpent(task);
  const key = createRequestKey();
  const inputs = listLimits(task).map((name) => {
    const isOver = spent[name] >= task.budget[name];
    let amount = task.budget[name];
    while (isOver && amount <= spent[name]) amount *= 2;
    const value = name === "seconds" ? formatInterval(amount) : String(amount);
    const [format, , label] = LIMITS[name];
    return createField(label, h("input.num", { name, value, autocomplete: "off" }),
      `Used so far: ${format(spent[name])}. This counts toward the maximum.`);
  });
  openForm("Continue with a larger budget", inputs, "Continue", async (values) => {
    const budget = Object.fromEntries(Object.entries(values)
      .map(([name, value]) => [name, name === "seconds" ? value.trim() : Number(value)]));
    const navigate = createNavigator();
    const retried = await post(`/tasks/${task.id}/retry`, { budget }, { key });
    showToast("Task continued.");
    navigate(`/tasks/${retried.id}`);
  });
}
