// Budgets: bars for what is used, what each task of a tree has used, the fields of a budget in forms, and a form for a
// larger budget. An account is what a tree of work may spend together.

import { post } from "./api.js";
import { createNavigator } from "./app.js";
import { createRequestKey, getFirstLine, h, renderKeyed, setText } from "./dom.js";
import { formatDollars, formatTokens, formatUsage, sumTokens } from "./figures.js";
import { isOpen } from "./model.js";
import { createField, openForm, showToast } from "./parts.js";
import { createMeter, RUN_KINDS, updateMeter } from "./automation-parts.js";
import { formatInterval, formatPeriod, now } from "./time.js";

// name of each limit: format of an amount, unit, label of its field
const LIMITS = {
  tokens: [formatTokens, " tokens", "Maximum tokens"], usd: [formatDollars, "", "Maximum dollars"],
  steps: [String, " steps", "Maximum steps"],
  seconds: [(seconds) => formatPeriod(Math.round(seconds)), " worked", "Maximum work time"],
};
const EXAMPLES = { tokens: "200000", usd: "1.5", steps: "30", seconds: "10m" };
const HINTS = {
  steps: "Calls of the model and uses of tools.", seconds: "Waiting for a person does not count.",
};
const getUnit = (name, amount) => (name === "steps" && amount === 1 ? " step" : LIMITS[name][1]);

/** What is shown instead of a cost that is not known: no agent reported it, and no price is known. */
export const UNKNOWN = "cost unknown";

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
    if (payload.usage?.cost_usd != null) spent.usd += payload.usage.cost_usd;
    else if (!spent.usd && payload.usage) spent.usd = null;
  }
  spent.seconds += Math.max(0, (now() - Math.max(readAt, Date.parse(task.started_at))) / 1000);
  return spent;
}

/** Show a bar for each limit of a task's account. */
export function drawBudget(node, task, account, spent) {
  node.hidden = !listLimits(account).length;
  drawLimits(node, account, { spent, open: isOpen(task) });
}

/** Show a bar for each of these limits; an amount without a limit is only a number. */
export function drawLimits(node, account, { spent = account, open = account.open, names = listLimits(account) } = {}) {
  renderKeyed(node, names, (name) => name, (name) => createMeter(name), (bar, name) => {
    const [format] = LIMITS[name];
    const limit = account.limits[name] ?? 0;
    const amount = spent[name] == null ? UNKNOWN : format(spent[name]);
    const text = limit ? `${amount} of ${format(limit)}` : amount;
    updateMeter(bar, spent[name], limit, `${text}${getUnit(name, limit || spent[name])}`, open);
  });
}

/** The names of all limits. */
export const LIMIT_NAMES = Object.keys(LIMITS);
/** Format an amount with its unit: 950 tokens, $0.25, 3 steps, 1 m 05 s worked. Only a cost may be null: unknown. */
export const formatAmount = (name, amount) =>
  (amount === null ? UNKNOWN : `${LIMITS[name][0](amount)}${getUnit(name, amount)}`);
/** Format what an account has spent; empty if it has spent nothing. */
export const formatSpent = (account) =>
  LIMIT_NAMES.filter((name) => account?.[name] > 0 || account?.[name] === null)
    .map((name) => formatAmount(name, account[name])).join(" · ");

/** Return the name of an account: the text of its work, or its day. */
export function formatAccount({ id, scope, title }) {
  if (scope !== "day") return getFirstLine(title) || id;
  const [, date, ...agent] = id.split(":");
  return `Day ${date}${agent.length ? `, agent ${agent.join(":")}` : ""}`;
}

/** Show whether an account asks for more, is spent, open or ended. */
export function updateAccountStatus(node, account) {
  const [status, text] = account.question ? ["asking", "asks"]
    : isSpent(account) ? ["failed", "spent"]
    : account.open ? ["live", "open"]
    : ["closed", "ended"];
  node.dataset.status = status;
  return setText(node, text);
}

/** Return the address of the work that an account belongs to, and its name; null for a day. */
export function getOrigin({ id, scope }) {
  if (scope === "day") return null;
  return scope === "goal" ? { href: `/goals/${id}`, name: "Goal" } : { href: `/tasks/${id}`, name: "Task" };
}

const SPENDING = new Set(["llm_response", "tool_exec_start", "tool_exec_end", "task_submitted", "approval_requested",
  "approval_resolved", "budget_warned", "budget_reached", ...RUN_KINDS]);

/** Return whether an event may change what an account has spent, its limits, its question or its tasks. */
export const isSpendingEvent = ({ kind }) => SPENDING.has(kind) || kind.startsWith("goal_");

/** Return what a task itself has used, by its reported usage. A cost that nobody reported is null. */
export function readOwnSpent(usage) {
  const { cost_usd: cost, usd, tokens: counted = 0, steps = 0, seconds = 0 } = usage ?? {};
  const tokens = sumTokens(usage) || counted;
  return { tokens, usd: cost ?? usd ?? (tokens ? null : 0), steps, seconds };
}

/** Return the tasks of an account as a tree: each task below the one that it grew out of, with its depth. */
export function nestTasks(tasks) {
  const ids = new Set(tasks.map((task) => task.id));
  const children = Map.groupBy(tasks, (task) => (ids.has(task.parent_id) ? task.parent_id : null));
  const collect = (parent, depth) =>
    (children.get(parent) ?? []).flatMap((task) => [{ ...task, depth }, ...collect(task.id, depth + 1)]);
  return collect(null, 0);
}

/** What happens when a budget is spent. */
export const MODES = {
  ask: "people are asked", stop: "the work stops", wind_up: "each task gives one last answer",
};

/** Format a limit exactly, as users type it. */
const formatLimit = (name, limit) =>
  (name === "seconds" && Number.isInteger(limit) ? formatInterval(limit) : String(limit));

/** Create the folded fields of a budget: its limits, and what happens when it is spent. The name of an input is that of
 * its limit after `prefix`; `about` says what the limits count for, `empty` what an empty field means. */
export function createBudgetFields({ prefix = "budget.", about, empty, hints = {}, limits = null, mode = null }) {
  const inputs = LIMIT_NAMES.map((name) => {
    const limit = limits?.[name] || "";
    return createField(LIMITS[name][2], h("input.num", {
      name: prefix + name, value: formatLimit(name, limit), autocomplete: "off",
      placeholder: `${empty}; e.g. ${EXAMPLES[name]}`,
    }), hints[name] ?? HINTS[name]);
  });
  const modes = [["", "default"], ["ask", MODES.ask], ["stop", MODES.stop]];
  const choice = h("select", { name: "on_budget" },
    modes.map(([value, text]) => h("option", { value, selected: value === (mode ?? "") }, text)));
  return h("details", { open: Boolean(mode) || LIMIT_NAMES.some((name) => limits?.[name]) },
    h("summary", "Budget"), h("p.hint", about),
    h("div.form-row.more-fields", inputs, createField("When the budget is spent", choice,
      "Default: the setting of the agent, or else people are asked if somebody can be asked.")));
}

/** Return the budget of a task as parameters that fill in the form for a new task. */
export const listBudgetParameters = ({ budget, on_budget: mode }) => (budget ? {
  ...Object.fromEntries(Object.entries(budget).map(([name, limit]) => [`budget.${name}`, formatLimit(name, limit)])),
  on_budget: mode,
} : {});

/** Return the values of a form with its limits in one field `budget`, as they were typed; null without limits. */
export function gatherBudget(values) {
  const rest = { ...values };
  const budget = {};
  for (const name of LIMIT_NAMES) {
    const limit = values[`budget.${name}`]?.trim();
    if (limit) budget[name] = limit;
    delete rest[`budget.${name}`];
  }
  return { ...rest, budget: Object.keys(budget).length ? budget : null };
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
    const value = formatLimit(name, amount);
    const [format, , label] = LIMITS[name];
    return createField(label, h("input.num", { name: `budget.${name}`, value, autocomplete: "off" }),
      `Used so far: ${format(spent[name])}. This counts toward the maximum.`);
  });
  openForm("Continue with a larger budget", inputs, "Continue", async (values) => {
    const navigate = createNavigator();
    const retried = await post(`/tasks/${task.id}/retry`, { budget: gatherBudget(values).budget }, { key });
    showToast("Task continued.");
    navigate(`/tasks/${retried.id}`);
  });
}

/** Tell what a task itself has used, and what all work with its account has used. */
export function createUsed(task, account) {
  const whole = account.id === task.id ? "With all work that grew out of it" : "The whole work that it belongs to";
  return h("div.used",
    h("p", h("b", "This task"), h("br"), formatOwnUsage(task)),
    h("p", h("b", whole), h("br"), h("a", { href: `/budgets/${account.id}` }, formatTreeUsage(account))));
}

function formatOwnUsage(task) {
  const usage = formatUsage(task.usage);
  if (!usage) return isOpen(task) ? "not known yet" : "unknown, not reported by the agent";
  return task.usage.cost_usd == null ? `${usage} · ${UNKNOWN}` : usage;
}

function formatTreeUsage(account) {
  const count = account.tasks.length;
  const spent = formatSpent(account) || (account.open ? "nothing yet" : "unknown");
  return `${spent} · ${count} ${count === 1 ? "task" : "tasks"}`;
}
