// Goals: the progress and the budget of each goal.

import { buildQuery, get, trackRequests } from "../api.js";
import { go, showLoadFailure } from "../app.js";
import { attention, needsAttention } from "../attention.js";
import { h, limitToFrame, renderRows, setText } from "../dom.js";
import { UNKNOWN } from "../budget.js";
import { formatDollars, formatTokens } from "../figures.js";
import { icon } from "../icons.js";
import {
  createAgo, createCommand, createEmpty, createPageHead, createSegments, createSkeleton, setAttribute,
} from "../parts.js";
import {
  createMeter, followEvents, formatAlert, formatPause, getName, RUN_KINDS, updateItemStatus, updateMeter,
} from "../automation-parts.js";
import { formatPeriod } from "../time.js";

const STATUSES = {
  "": "all", active: "active", waiting_for_session: "waiting", paused: "paused", complete: "complete",
  timeout: "timed out",
};
const LISTED = 200;
const OPEN = new Set(["active", "paused", "waiting_for_session"]);

export const isOpenGoal = (goal) => OPEN.has(goal.status);

export default async function renderGoals(main, page) {
  page.setTitle("Goals");
  const status = page.search.get("status") ?? "";
  const list = h("ol.rows.goal-list", { "aria-label": "Goals" });
  const body = h("section.panel", createSkeleton(5), list);
  main.append(
    createPageHead("Goals", h("a.button.primary.action", { href: "/goals/new" }, icon("plus"), h("span", "New goal"))),
    createFilters(status), body);
  const data = { all: new Map() };
  const draw = limitToFrame(() => {
    if (!page.isCurrent() || !data.loaded) return;
    const rows = [...data.all.values()]
      .filter((goal) => !status || goal.status === status)
      .sort((a, b) => Number(isOpenGoal(b)) - Number(isOpenGoal(a)) || (a.id < b.id ? 1 : -1));
    renderRows(list, rows, (goal) => goal.id, createRow, updateRow);
    body.querySelector(".empty")?.remove();
    if (!rows.length) body.append(createEmptyList(status));
  });
  const startRequest = trackRequests();
  const store = (goals, accept) => {
    if (!page.isCurrent()) return;
    body.querySelector(".skeleton")?.remove();
    for (const goal of goals) if (accept(goal.id)) data.all.set(goal.id, goal);
    data.loaded = true;
    draw();
  };
  const read = async () => {
    const { accept } = startRequest();
    store((await get(`/goals${buildQuery({ status, limit: LISTED })}`)).goals.filter((goal) =>
      !clearedIds.has(goal.id)), accept);
  };
  const clearedIds = new Set();
  const readOne = async (id) => {
    if (clearedIds.has(id)) return;
    const { accept } = startRequest();
    const reply = await get(`/goals/${id}`).catch((problem) => problem);
    if (reply.status === 404) {
      data.all.delete(id);
      draw();
    } else if (reply.id && !clearedIds.has(id)) store([reply], accept);
  };
  const steps = new Map(); // task id to goal id
  const bySession = (event) =>
    [...data.all.values()].find((goal) => goal.session_key === event.session_key && isOpenGoal(goal))?.id;
  const findSubject = (event) => {
    const id = event.payload?.goal_id;
    if (event.kind === "goal_step") steps.set(event.payload.task_id, id);
    if (id) {
      if (event.kind === "goal_changed" && event.payload.fields?.includes("cleared")) {
        clearedIds.add(id);
        data.all.delete(id);
        draw();
        return null;
      }
      return id;
    }
    return RUN_KINDS.has(event.kind) ? (steps.get(event.task_id) ?? bySession(event) ?? null) : null;
  };
  const first = read();
  followEvents(page, { first, findSubject, read: readOne, reset: () => { data.all.clear(); read().catch(() => {}); } });
  page.onLeave(attention.on(draw));
  await first.catch((problem) => showLoadFailure(page, body, problem));
}

function createFilters(status) {
  const change = (name) => go(`/goals${buildQuery({ status: name })}`, { replace: true });
  return h("div.filters", createSegments("Status", Object.entries(STATUSES), status, change));
}

function createEmptyList(status) {
  if (status) return createEmpty("No matching goals", "", h("a.button", { href: "/goals" }, "Clear filters"));
  return createEmpty("No goals yet",
    "An agent works on a goal step by step until it is reached, its deadline passes or its budget is used up.",
    h("a.button.primary.action", { href: "/goals/new" }, "New goal"),
    createCommand('midwatch goal set "All tests of the project pass" --deadline "in 1d"'));
}

/** Create the meters of a goal: steps, tokens, cost and work time. */
export function createMeters() {
  const parts = { steps: createMeter("steps"), tokens: createMeter("tokens"), cost: createMeter("cost"),
    time: createMeter("time") };
  return { parts, node: h("span.meters", Object.values(parts)) };
}

export function updateMeters({ steps, tokens, cost, time }, goal) {
  const open = isOpenGoal(goal);
  const of = (most, text) => (most ? ` of ${text}` : "");
  updateMeter(steps, goal.step, goal.max_steps,
    `${goal.step}${of(goal.max_steps, goal.max_steps)} ${goal.max_steps || goal.step !== 1 ? "steps" : "step"}`, open);
  updateMeter(tokens, goal.tokens, goal.max_tokens,
    `${formatTokens(goal.tokens)}${of(goal.max_tokens, formatTokens(goal.max_tokens))} tokens`, open);
  cost.hidden = !goal.max_usd && !goal.tokens;
  updateMeter(cost, goal.usd, goal.max_usd,
    `${goal.usd === null ? UNKNOWN : formatDollars(goal.usd)}${of(goal.max_usd, formatDollars(goal.max_usd))}`, open);
  updateMeter(time, goal.seconds, goal.max_seconds,
    `${formatPeriod(goal.seconds)}${of(goal.max_seconds, formatPeriod(goal.max_seconds))} worked`, open);
}

/** Return the state of a goal as one line. */
export function formatGoalState(goal) {
  if (goal.status === "paused") return formatPause(goal);
  if (goal.status === "waiting_for_session") return `Waiting for session ${goal.session_key}`;
  if (goal.status === "complete") return goal.evidence ? `Reached: ${goal.evidence}` : "Reached";
  if (goal.status === "timeout") return "The deadline has passed";
  if (goal.running)
    return { step: `Step ${goal.step} is running`, verify: "Checking the result", wrap_up: "Wrapping up" }[goal.work];
  const every = goal.every_seconds && !goal.delay_reason ? ` every ${formatPeriod(goal.every_seconds)}` : "";
  if (every) return `A step${every}`;
  return goal.delay_reason ? `Waiting: ${goal.delay_reason}` : goal.step ? "The next step starts"
    : "The first step starts";
}

function createRow(goal) {
  const budget = createMeters();
  const parts = {
    status: h("span.status"), title: h("span.truncate.row-title"), left: h("mw-left.num"), done: createAgo(null),
    next: createAgo(null), sub: h("span.truncate"), meters: budget.parts,
  };
  parts.leftLine = h("span.left", parts.left, " left");
  parts.nextLine = h("span.next-step", "next step ", parts.next);
  const link = h("a.row.goal-row", { href: `/goals/${goal.id}` }, parts.status, parts.title, budget.node,
    h("span.ends", parts.leftLine, parts.done),
    h("span.row-sub.two-ends", parts.sub, parts.nextLine));
  return Object.assign(h("li", link), { parts });
}

function updateRow(node, goal) {
  const { status, title, left, leftLine, done, next, nextLine, sub, meters: parts } = node.parts;
  const open = isOpenGoal(goal);
  updateItemStatus(status, goal);
  setText(title, goal.name ? `${goal.name}: ${getName(goal)}` : getName(goal));
  updateMeters(parts, goal);
  setAttribute(left, "at", goal.deadline_at);
  leftLine.hidden = !open;
  setAttribute(done, "at", goal.completed_at ?? goal.updated_at);
  done.hidden = open;
  setAttribute(next, "at", goal.next_run_at);
  nextLine.hidden = !goal.next_run_at || goal.status !== "active";
  const alert = formatAlert(goal);
  sub.className = alert || needsAttention(goal) || goal.status === "timeout" ? "truncate warn-text" : "truncate";
  setText(sub, alert || formatGoalState(goal));
}
