// One goal: its objective, steps, budget and results.

import { del, get, patch, post, trackRequests } from "../api.js";
import { go } from "../app.js";
import { attention, needsAttention } from "../attention.js";
import { MODES } from "../budget.js";
import { getFirstLine, h, limitToFrame, renderKeyed, setText } from "../dom.js";
import {
  confirmAction, createActionButton, createAgo, createDetailHead, createEmpty, createField, createPanel,
  createSessionLink, createSkeleton, createTextPanel, openForm, renderButtons, renderFacts, setAttribute, showToast,
} from "../parts.js";
import {
  createRunParts, followEvents, formatAlert, getName, RUN_KINDS, updateItemStatus, updateRun,
} from "../automation-parts.js";
import { formatDateTime, formatInterval, formatPeriod } from "../time.js";
import { createGoalBudget, saveGoal, showWarnings, splitList } from "./goal-form.js";
import { createMeters, formatGoalState, isOpenGoal, updateMeters } from "./goals.js";
import { formatTokens, sumTokens } from "../figures.js";
import { describeProbe } from "../probe-parts.js";

const STEPS = 200;

export default async function renderGoal(main, page) {
  const id = page.params.id;
  page.setTitle("Goal");
  main.className = "task-page item-page";
  const view = buildPage(main, id);
  const data = { goal: null, steps: [], works: new Map() };
  const draw = limitToFrame(() => page.isCurrent() && data.goal && drawAll(view, data, page));
  const startRequest = trackRequests();
  const read = async () => {
    const { accept } = startRequest();
    const path = `/goals/${encodeURIComponent(id)}`;
    const [goal, { runs }] = await Promise.all([get(path), get(`${path}/steps?limit=${STEPS}`)]);
    if (!accept()) return;
    Object.assign(data, { goal, steps: runs });
    draw();
  };
  const readAgain = () => read().catch(() => {});
  view.leave = () => {
    if (!page.isCurrent()) return;
    showToast("The goal was cleared.");
    go("/goals", { replace: true });
  };
  const findSubject = (event) => {
    if (event.payload?.goal_id === (data.goal?.id ?? id)) { // the address may have its name
      if (event.kind === "goal_changed" && event.payload.fields?.includes("cleared")) return void view.leave();
      if (event.kind === "goal_step") data.works.set(event.payload.task_id, event.payload);
      return id;
    }
    return RUN_KINDS.has(event.kind) &&
      (data.works.has(event.task_id) || data.steps.some((step) => step.task_id === event.task_id))
      ? id
      : null;
  };
  const first = read();
  followEvents(page, { first, findSubject, read: readAgain, reset: readAgain });
  page.onLeave(attention.on(draw));
  await first;
  const { events } = await get(
    `/events?kind=goal_step&session_key=${encodeURIComponent(data.goal.session_key)}` +
      `&before=${Number.MAX_SAFE_INTEGER}&limit=1000`,
  ).catch(() => ({ events: [] }));
  for (const { payload } of events) if (payload.goal_id === data.goal.id) data.works.set(payload.task_id, payload);
  draw();
}

function buildPage(main, id) {
  const budget = createMeters();
  const view = {
    title: h("h1.truncate", "…"), status: h("span.status", { role: "status" }), left: h("mw-left.num"),
    leftLine: h("span"),
    next: createAgo(null), nextLine: h("span.dim"), buttons: h("span.task-buttons.action"),
    note: h("p.status-note"), objective: h("div.plain-text"), texts: h("div.stack.goal-texts"),
    steps: h("ol.steps", { "aria-label": "Steps" }), facts: h("dl.facts"), budget: budget.parts,
    noSteps: createEmpty("No steps yet", "Each step is a task. Steps are listed here when they start."),
  };
  view.leftLine.append(view.left, " left");
  view.nextLine.append("next step ", view.next);
  const steps = createPanel("Steps", { name: "goal-steps", count: true });
  view.counter = steps.counter;
  steps.body.append(view.steps, view.noSteps);
  const byTask = h("a", { href: `/budgets/${encodeURIComponent(id)}` }, "By task");
  const spent = createPanel("Budget", { name: "budget", content: [budget.node], actions: [byTask] });
  const about = createPanel("About", { content: [view.facts] });
  view.body = h("div", { hidden: true }, createDetailHead("/goals", "Goals", view.title, view.buttons),
    h("p.task-line", view.status, view.leftLine, view.nextLine, h("span.spacer"), h("code.faint", id)),
    view.note,
    h("div.task-grid", h("div.stack", createTextPanel("Objective", view.objective), steps.node),
      h("div.stack", spent.node, about.node, view.texts)));
  view.loading = createSkeleton(8);
  main.append(view.loading, view.body);
  return view;
}

function drawAll(view, data, page) {
  const { goal, steps, works } = data;
  view.loading.remove();
  view.body.hidden = false;
  const name = getName(goal);
  page.setTitle(getFirstLine(name, 100));
  setText(view.title, name).title = name;
  updateItemStatus(view.status, goal);
  setAttribute(view.left, "at", goal.deadline_at);
  view.leftLine.hidden = !isOpenGoal(goal);
  setAttribute(view.next, "at", goal.next_run_at);
  view.nextLine.hidden = !goal.next_run_at || goal.status !== "active";
  const alert = formatAlert(goal);
  setText(view.note, alert || formatGoalState(goal));
  view.note.classList.toggle("warning", Boolean(alert) || needsAttention(goal) || goal.status === "timeout");
  view.note.classList.toggle("reached", goal.status === "complete");
  drawButtons(view.buttons, goal, view.leave);
  setText(view.objective, goal.objective);
  updateMeters(view.budget, goal);
  const texts = [
    ["Evidence", goal.evidence], ["Missing, according to the last check", isOpenGoal(goal) ? goal.missing : null],
    ["Latest check", goal.last_check && formatCheck(goal.last_check)], ["Summary of the latest step", goal.summary],
  ].filter(([, text]) => text);
  renderKeyed(view.texts, texts, ([title]) => title,
    ([title]) => createTextPanel(title, h("div.plain-text.clamped-text")),
    (node, [, text]) => setText(node.querySelector(".clamped-text"), text));
  renderKeyed(view.steps, steps, (step) => step.task_id, createStepRow,
    (node, step) => updateStepRow(node, step, works.get(step.task_id)));
  setText(view.counter, goal.step || "");
  view.noSteps.hidden = steps.length > 0;
  drawFacts(view.facts, goal);
}

const formatCheck = (check) =>
  `${check.command}\n${describeProbe({ ...check, error: check.problem, duration: check.seconds })}\n\n${check.output}`;

function createStepRow(step) {
  const parts = {
    ...createRunParts(step), name: h("span.row-title"), at: createAgo(null), tokens: h("span.num.dim"),
    text: h("span.truncate"),
  };
  return Object.assign(h("li",
    h("a.row.step-row", { href: `/tasks/${step.task_id}` }, parts.name, parts.status, parts.tokens, parts.time,
      h("span.row-sub.two-ends", parts.text, parts.at))), { parts });
}

function updateStepRow(node, step, work) {
  const { name, at, tokens, text } = node.parts;
  node.dataset.status = step.status;
  updateRun(node.parts, step);
  setText(name, !work ? "Step" : work.work === "step" ? `Step ${work.step}` : work.work === "verify" ? "Check"
    : "Wrap-up");
  const used = sumTokens(step.usage);
  setText(tokens, used === null ? "" : `${formatTokens(used)} tokens`);
  setAttribute(at, "at", step.completed_at ?? step.started_at);
  at.hidden = !(step.completed_at ?? step.started_at);
  text.classList.toggle("bad-text", step.status === "failed");
  setText(text,
    getFirstLine(step.status === "failed" ? (step.error ?? step.outcome) : step.result, 300) ||
      (step.status === "running" ? "Working" : ""));
}

const SHOWN = {
  active: ["step", "pause", "stop", "delay", "complete", "edit", "clear"],
  waiting_for_session: ["pause", "complete", "edit", "clear"], paused: ["resume", "stop", "complete", "edit", "clear"],
};

function drawButtons(place, goal, leave) {
  place.item = goal;
  const path = `/goals/${goal.id}`;
  const make = {
    step: () => createActionButton("Step now", () => post(`${path}/step`),
      { iconName: "play", title: "Start the next step now" }),
    pause: () =>
      createActionButton("Pause", () => post(`${path}/pause`),
        { iconName: "pause", title: "Pause the goal; a running step goes on to its end" }),
    stop: () =>
      createActionButton("Stop", () => post(`${path}/pause`, { stop: true }),
        { iconName: "stop", title: "Stop the running step at once and pause the goal" }),
    resume: () => createActionButton("Resume", () => post(`${path}/resume`), { kind: "primary", iconName: "retry" }),
    complete: () => createActionButton("Complete", () => openCompleteForm(place.item), { iconName: "check" }),
    delay: () => createActionButton("Delay", () => openDelayForm(place.item), { iconName: "clock" }),
    edit: () => createActionButton("Edit", () => openEditForm(place.item), { iconName: "edit" }),
    clear: () => createActionButton("Clear", () => clearGoal(place.item, leave), { kind: "danger", iconName: "bin" }),
  };
  renderButtons(place, SHOWN[goal.status] ?? ["clear"], make,
    { step: goal.running || !goal.next_run_at, stop: !goal.running });
}

async function openCompleteForm(goal) {
  openForm("Complete the goal",
    [
      createField("Evidence", h("textarea", { name: "evidence", rows: 4, value: goal.evidence ?? "" }),
        "What proves that the goal is reached. A running step is stopped."),
    ],
    "Complete goal",
    ({ evidence }) => post(`/goals/${goal.id}/complete`, { evidence }));
}

async function openDelayForm(goal) {
  openForm("Delay the next step", [
    createField("Delay by", h("input", { name: "duration", value: "1h", autocomplete: "off" }),
      "1m to 12h; 0 starts the step now."),
    createField("Reason", h("input", { name: "reason", autocomplete: "off", placeholder: "what the goal waits for" })),
  ], "Delay step", ({ duration, reason }) =>
    post(`/goals/${goal.id}/delay`, { duration: duration.trim(), reason: reason.trim() || "delayed manually" }));
}

const formatLength = (seconds) => (seconds ? formatInterval(seconds) : "");

async function openEditForm(goal) {
  const first = openForm("Edit the goal", [
    createField("Objective", h("textarea", { name: "objective", rows: 5, value: goal.objective })),
    createField("Name", h("input", { name: "name", value: goal.name ?? "", autocomplete: "off" })),
    createField("Deadline", h("input", { name: "deadline", value: goal.deadline_at, autocomplete: "off" }),
      "For example in 6h, tomorrow 18:00 or 2026-03-29T09:00."),
    createField("Check", h("input.mono",
      { name: "check", value: goal.check_command ?? "", autocomplete: "off", spellcheck: false, placeholder: "none" }),
      "A command that runs after each step. Exit status 0 completes the goal."),
    createField("For at most", h("input", {
      name: "check_timeout", value: formatLength(goal.check_timeout), autocomplete: "off",
    }), "How long the check may take."),
    createField("Tags", h("input", { name: "tags", value: goal.tags.join(", "), autocomplete: "off" }),
      "Words to find it by, with commas between them."),
    createField("Every", h("input", {
      name: "every_seconds", value: formatLength(goal.every_seconds), autocomplete: "off",
    }), "Start a step this often, such as 10m; empty for the pace of the goal."),
    createField("Progress every", h("input", {
      name: "progress_every", value: formatLength(goal.progress_every), autocomplete: "off",
    }), "A notice about the progress is sent this often at most; empty for never."),
    createGoalBudget(goal),
  ], "Save", async (values) => {
    const changes = Object.fromEntries(Object.entries(values)
      .filter(([name, value]) => value !== first[name])
      .map(([name, value]) => [name, name === "tags" ? splitList(value) : value || clearValue(name)]));
    if (Object.keys(changes).length) showWarnings(await saveGoal(patch(`/goals/${goal.id}`, changes)));
  });
}

const clearValue = (name) => (name.startsWith("max_") ? "0" : ["on_budget", "check"].includes(name) ? null : "");

async function clearGoal(goal, leave) {
  if (!(await confirmAction(
    "Clear this goal? It is removed, and its running step and the work that its steps submitted are stopped.",
    "Clear goal")))
    return;
  await del(`/goals/${goal.id}`);
  leave();
}

function drawFacts(list, goal) {
  renderFacts(list, [
    ["Name", goal.name], ["Agent", goal.agent], ["Verifier", goal.verifier], ["Judge", goal.judge],
    ["Check", goal.check_command && `${goal.check_command} (at most ${formatPeriod(goal.check_timeout)})`],
    ["Every", goal.every_seconds ? formatPeriod(goal.every_seconds) : null],
    ["Directory", goal.workdir],
    ["Session", createSessionLink(goal.session_key)],
    ["Deadline", formatDateTime(goal.deadline_at)], ["Waiting for", goal.delay_reason],
    ["When spent", MODES[goal.on_budget]],
    ["Failures", goal.errors ? `${goal.errors} in a row` : null],
    ["Work time", formatPeriod(goal.seconds)], ["Notify", goal.route], ["Notices", goal.notices],
    ["Tags", goal.tags.join(", ")], ["Scope", `${goal.scope_kind}:${goal.scope_id}`],
    ["Created", `${formatDateTime(goal.created_at)}${goal.creator ? ` by ${goal.creator}` : ""}`],
    ["Ended", goal.completed_at ? formatDateTime(goal.completed_at) : null],
  ]);
}
