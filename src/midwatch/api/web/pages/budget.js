// One budget: its limits, and the tree of its tasks with what each of them has used.

import { get, trackRequests } from "../api.js";
import { renderApprovals } from "../approval.js";
import { createMeter, followEvents, updateMeter } from "../automation-parts.js";
import {
  drawLimits, formatAccount, formatAmount, getOrigin, isSpendingEvent, LIMIT_NAMES, MODES, nestTasks,
  readOwnSpent, updateAccountStatus,
} from "../budget.js";
import { getFirstLine, h, limitToFrame, renderKeyed, setText } from "../dom.js";
import {
  createAgo, createDetailHead, createEmpty, createPanel, createSegments, createSkeleton, createStatus, renderFacts,
  setAttribute, updateStatus,
} from "../parts.js";
import { formatDateTime, formatMoment } from "../time.js";

const DELAY = 500; // milliseconds between two readings of the account
const MOST_TASKS = 200; // the server returns no more
const MEASURES = { tokens: "tokens", usd: "cost", steps: "steps", seconds: "time" };
const SCOPES = {
  task: "all work of a task", goal: "all work of a goal", automation: "all work of an automation's run",
  day: "all work of a day",
};

export default async function renderBudget(main, page) {
  const { id } = page.params;
  page.setTitle("Budget");
  main.className = "task-page item-page";
  const data = { account: null, measure: null };
  const draw = limitToFrame(() => page.isCurrent() && data.account && drawAll(view, data, page));
  const view = buildPage(main, id, (measure) => { data.measure = measure; draw(); });
  const startRequest = trackRequests();
  const read = async () => {
    const { accept } = startRequest();
    const account = await get(`/budgets/${encodeURIComponent(id)}`);
    if (!accept()) return;
    data.account = { ...account, open: account.open || account.scope === "day" };
    draw();
  };
  const readAgain = () => read().catch(() => {});
  const first = read();
  followEvents(page, {
    first, findSubject: (event) => (isSpendingEvent(event) && isAbout(event, data.account, id) ? id : null),
    read: readAgain, reset: readAgain, delay: DELAY,
  });
  page.onLeave(() => view.stopApprovals?.());
  await first;
}

/** Return whether an event may change the account. All work changes the account of a day. */
const isAbout = ({ task_id: task, trace_path: path, payload }, account, id) =>
  account?.scope === "day" || task === id || payload.goal_id === id || payload.account_id === id ||
  Boolean(path?.split("/").includes(id)) || Boolean(account?.tasks.some((member) => member.id === task));

function buildPage(main, id, chooseMeasure) {
  const view = {
    title: h("h1.truncate", "…"), status: h("span.status", { role: "status" }), ago: createAgo(null),
    origin: h("span.task-buttons"), approvals: h("div.approvals.in-place", { "aria-live": "polite" }),
    limits: h("div.meters"), noLimits: h("p.faint", "Nothing is spent yet, and there is no limit."),
    facts: h("dl.facts"), tasks: h("ol.rows.budget-tree", { "aria-label": "Tasks" }), rest: createRest(),
    measures: h("span"), chooseMeasure, noTasks: h("div"),
  };
  const tasks = createPanel("Tasks", { name: "budget-tasks", count: true, actions: [view.measures] });
  view.counter = tasks.counter;
  tasks.body.append(view.tasks, view.rest, view.noTasks);
  const limits = createPanel("Limits", { name: "budget", content: [view.limits, view.noLimits] });
  const about = createPanel("About", { content: [view.facts] });
  view.body = h("div", { hidden: true }, createDetailHead("/budgets", "Budgets", view.title, view.origin),
    h("p.task-line", view.status, h("span.dim", "opened ", view.ago), h("span.spacer"), h("code.faint", id)),
    h("div.task-grid", h("div.stack", tasks.node, view.approvals), h("div.stack", limits.node, about.node)));
  view.loading = createSkeleton(8);
  main.append(view.loading, view.body);
  return view;
}

function drawAll(view, data, page) {
  const { account } = data;
  const name = formatAccount(account);
  const origin = getOrigin(account);
  if (view.body.hidden) {
    view.loading.remove();
    view.body.hidden = false;
    data.measure = findMeasure(account);
    view.measures.append(createSegments("Amount", Object.entries(MEASURES), data.measure, view.chooseMeasure));
    view.noTasks.append(account.scope === "day"
      ? createEmpty("All work of the day counts", "Its tasks are not listed here.",
        h("a.button", { href: "/usage?days=1&by=agent" }, "Usage by agent"))
      : createEmpty("No tasks yet", "Tasks are listed here when they are submitted."));
    if (origin) view.origin.append(h("a.button", { href: origin.href }, origin.name));
  }
  page.setTitle(`Budget: ${getFirstLine(name, 80)}`);
  setText(view.title, name).title = account.title;
  updateAccountStatus(view.status, account);
  setAttribute(view.ago, "at", account.created_at);
  drawQuestion(view, account.question);
  const names = LIMIT_NAMES.filter((name) => account.limits[name] || account[name] !== 0);
  drawLimits(view.limits, account, { names });
  view.noLimits.hidden = Boolean(view.limits.firstChild);
  renderFacts(view.facts, [
    ["Counts", SCOPES[account.scope]], ["Agent", account.agent],
    ["When spent", account.scope === "day" ? "new tasks wait until midnight" : MODES[account.on_budget]],
    ["Warned", account.warned.replaceAll(",", ", ")], ["Opened", formatDateTime(account.created_at)],
  ]);
  drawTasks(view, account, data.measure);
}

/** Return the amount that is shown first: the first one with a limit, or else the first one that was spent. */
const findMeasure = (account) =>
  LIMIT_NAMES.find((name) => account.limits[name] && account[name]) ?? LIMIT_NAMES.find((name) => account[name]) ??
  "tokens";

/** Show the open question of the account with its answer buttons. */
function drawQuestion(view, question) {
  if (view.question === question) return;
  view.question = question;
  view.stopApprovals?.();
  view.stopApprovals = renderApprovals(view.approvals, { filter: (approval) => approval.id === question });
}

/** Show the tree of tasks; a bar is the part of a task in what the whole tree has spent. */
function drawTasks(view, account, measure) {
  const tasks = nestTasks(account.tasks).map((task) =>
    ({ ...task, spent: readOwnSpent(task.usage)[measure], isStep: account.scope === "goal" && !task.depth }));
  const sum = tasks.reduce((total, task) => total + task.spent, 0);
  const total = Math.max(sum, account[measure]);
  const rest = tasks.length ? total - sum : 0;
  setText(view.counter, tasks.length || "");
  view.noTasks.hidden = tasks.length > 0;
  view.measures.hidden = !tasks.length;
  renderKeyed(view.tasks, tasks, (task) => task.id, createTaskRow, (node, task) => {
    node.style.setProperty("--depth", Math.min(task.depth, 8));
    updateStatus(node.querySelector(".status"), task);
    updateShare(node.querySelector(".meter"), measure, task.spent, total, task.usage || !task.open);
  });
  // the usage of a task is known when its attempt has ended
  view.rest.hidden = rest < (measure === "seconds" ? 1 : 1e-6);
  setText(view.rest.querySelector(".faint"),
    tasks.length >= MOST_TASKS ? "Running, interrupted or not listed" : "Running or interrupted");
  updateShare(view.rest.querySelector(".meter"), measure, rest, total, true);
}

function updateShare(meter, measure, spent, total, isKnown) {
  const part = total ? ` · ${Math.round((100 * spent) / total)} %` : "";
  updateMeter(meter, spent, total || 1, isKnown ? `${formatAmount(measure, spent)}${part}` : "not known yet", false);
}

/** Create the row of what is spent and not yet known for each task. */
const createRest = () => h("div.rows", h("div.row.tree-row", h("span"), h("span.faint"), createMeter("rest")));

function createTaskRow(task) {
  // the prompts of all steps of a goal begin alike
  const text = task.isStep ? `Step, ${formatMoment(task.created_at)}` : getFirstLine(task.prompt);
  const title = h("span.truncate", { title: task.prompt }, h("b", task.agent), " ", text);
  const own = task.budget && task.parent_id ? h("span.tag", "own budget") : "";
  return h("li", h("a.row.tree-row", { href: `/tasks/${task.id}` },
    createStatus(task), h("span.tree-title", title, own), createMeter("own")));
}
