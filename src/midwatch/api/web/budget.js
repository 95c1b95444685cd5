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

// the account of a task has the limits of its whole tree; while the page is open, only events tell what is spent since
const listLimits = (account) => Object.keys(LIMITS).filter((name) => account?.limits?.[name] > 0);

/** Sum what the tree of a task has used: by its account and, while the task runs, by the events since then. */
export function sumSpent(task, account, events = []) {
  const { tokens = 0, usd = 0, steps = 0, seconds = 0, read_at: readAt } = account ?? {};
  const spent = { tokens, usd, steps, seconds };
  if (!readAt || task.status !== "running") return spent;
  for (const { kind, time, payload } of events) {
    if (!["llm_response", "tool_exec_end"].includes(kind) || Date.parse(time) <= readAt) continue;
    spent.steps += 1;
    spent.tokens += (payload.usage?.input_tokens ?? 0) + (payload.usage?.output_tokens ?? 0);
    spent.usd += payload.usage?.cost_usd ?? 0;
  }
  spent.seconds += Math.max(0, (now() - Math.max(readAt, Date.parse(task.started_at))) / 1000);
  return spent;
}

/** Show a bar for each limit. */
export function drawBudget(node, task, account, events) {
  const names = listLimits(account);
  const spent = sumSpent(task, account, events);
  node.hidden = !names.length;
  renderKeyed(node, names, (name) => name, (name) => createMeter(name), (bar, name) => {
    const [format, unit] = LIMITS[name];
    updateMeter(bar, spent[name], account.limits[name],
      `${format(spent[name])} of ${format(account.limits[name])}${unit}`, isOpen(task));
  });
}

/** Return whether the task can continue only with a larger budget. */
export function isSpent(account) {
  return listLimits(account).some((name) => account[name] >= account.limits[name]);
}

/** Ask for a larger budget, then continue the task with it. */
export function openBudgetForm(task, account) {
  const spent = sumSpent(task, account);
  const key = createRequestKey();
  const inputs = listLimits(account).map((name) => {
    const isOver = spent[name] >= account.limits[name];
    let amount = account.limits[name];
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
