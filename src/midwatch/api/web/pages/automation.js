// One automation: its prompt, schedule and runs.

import { del, get, post, trackRequests } from "../api.js";
import { attention, needsAttention } from "../attention.js";
import { formatAmount, LIMIT_NAMES, MODES } from "../budget.js";
import { drawChain } from "../chain.js";
import { desk } from "../desk.js";
import { h, limitToFrame, renderKeyed, setText } from "../dom.js";
import { icon } from "../icons.js";
import {
  confirmAction, createActionButton, createAgo, createCommand, createDetailHead, createEmpty, createPanel,
  createSessionLink, createSkeleton, createTaskLink, createTextPanel, renderButtons, renderFacts, setAttribute,
  showToast,
} from "../parts.js";
import {
  createRunParts, followEvents, formatAlert, formatOutcome, formatPause, getName, RUN_KINDS, updateItemStatus,
  updateRun,
} from "../automation-parts.js";
import { formatDateTime, formatMoment, formatPeriod } from "../time.js";
import { createTriggerPanels, drawTriggers, formatTriggers } from "../trigger-parts.js";
import { renderAutomationForm } from "./automation-form.js";
import { formatLastRun, runNow } from "./automations.js";
import { formatTokens, sumTokens } from "../figures.js";

const HISTORY = 100, FIRINGS = 50;

export default async function renderAutomation(main, page) {
  const id = page.params.id;
  page.setTitle("Automation");
  if (page.search.has("edit") && desk.may.act) {
    const automation = await get(`/automations/${encodeURIComponent(id)}`);
    return page.isCurrent() ? renderAutomationForm(main, page, automation) : undefined;
  }
  main.className = "task-page item-page";
  const view = buildPage(main, id);
  const data = { automation: null, when: "", runs: [], triggers: [], firings: [], nodes: [] };
  const draw = limitToFrame(() => page.isCurrent() && data.automation && drawAll(view, data, page));
  const startRequest = trackRequests();
  const read = async () => {
    const { accept } = startRequest();
    const path = `/automations/${encodeURIComponent(id)}`;
    const [automation, history, days, chain] = await Promise.all([
      get(path), get(`${path}/history?limit=${HISTORY}`), get(`/schedules/day?id=${encodeURIComponent(id)}`),
      get(`${path}/chain`),
    ]);
    const fired = automation.triggers.length
      ? await Promise.all([get(`${path}/triggers`), get(`${path}/firings?limit=${FIRINGS}`)])
      : [{ triggers: [] }, { firings: [] }];
    if (!accept()) return;
    Object.assign(data, { automation, runs: history.runs, ...fired[0], ...fired[1], nodes: chain.nodes });
    const timed = ["at", "every", "cron"].some((name) => (automation.schedule[name] ?? null) !== null);
    data.when = [timed && days.days[0]?.when, formatTriggers(automation)].filter(Boolean).join(", ");
    draw();
  };
  const taskIds = new Set();
  const findSubject = (event) => {
    if (event.payload?.automation_id === (data.automation?.id ?? id)) { // the address may have its name
      if (event.payload.task_id) taskIds.add(event.payload.task_id);
      return id;
    }
    if (data.nodes.some((node) => node.id === event.payload?.automation_id || node.last?.task_id === event.task_id))
      return event.payload?.automation_id || RUN_KINDS.has(event.kind) ? id : null;
    return RUN_KINDS.has(event.kind) &&
      (taskIds.has(event.task_id) || data.runs.some((run) => run.task_id === event.task_id))
      ? id
      : null;
  };
  const first = read();
  followEvents(page, { first, findSubject, read: () => read().catch(() => {}), reset: () => read().catch(() => {}) });
  page.onLeave(attention.on(draw));
  return first;
}

function buildPage(main, id) {
  const view = {
    title: h("h1.truncate", "…"), status: h("span.status", { role: "status" }), when: h("span"),
    next: createAgo(null), nextLine: h("span.dim"), buttons: h("span.task-buttons.action"),
    prompt: h("div.plain-text"), runs: h("tbody"), times: h("ol.times"), facts: h("dl.facts"),
    note: h("p.status-note"), deletedNote: h("div.status-note.deleted-note", { hidden: true }),
    noRuns: createEmpty("No runs yet", "Each run is a task. Runs are listed here when they start."),
    noTimes: h("p.faint", "No next run."), fired: createTriggerPanels(),
  };
  view.nextLine.append("next run ", view.next);
  const runs = createPanel("Runs", { name: "runs" });
  view.table = h("div.scroll-x", h("table.plain.runs-table",
    h("thead", h("tr", ["Scheduled for", "Started", "Duration", "Outcome", "Tokens", ""].map((name) => h("th", name)))),
    view.runs));
  runs.body.append(view.table, view.noRuns);
  view.chain = h("div.scroll-x");
  view.chainPanel = createPanel("Chain", { name: "chain-panel", content: [view.chain] }).node;
  view.chainPanel.hidden = true;
  const times = createPanel("Next runs", { name: "next-runs", content: [view.times, view.noTimes] });
  const about = createPanel("About", { content: [view.facts] });
  view.deletedNote.append(
    h("p", h("b", "Deleted "), createAgo(null),
      ". It does not run any more. You can restore it within 30 days, here or with:"),
    createCommand(`midwatch automation resume ${id}`));
  view.body = h("div", { hidden: true },
    createDetailHead("/automations", "Automations", view.title, view.buttons),
    h("p.task-line", view.status, view.when, view.nextLine, h("span.spacer"), h("code.faint", id)),
    view.deletedNote, view.note, view.chainPanel,
    h("div.task-grid", h("div.stack", createTextPanel("Prompt", view.prompt), runs.node, view.fired.firings),
      h("div.stack", times.node, view.fired.triggers, about.node)));
  view.loading = createSkeleton(8);
  main.append(view.loading, view.body);
  return view;
}

function drawAll(view, data, page) {
  const { automation, runs } = data;
  view.loading.remove();
  view.body.hidden = false;
  const name = getName(automation);
  page.setTitle(name);
  setText(view.title, name).title = name;
  updateItemStatus(view.status, automation);
  setText(view.when, data.when);
  setAttribute(view.next, "at", automation.next_run_at);
  view.nextLine.hidden = !automation.next_run_at;
  drawButtons(view.buttons, automation);
  setText(view.prompt, automation.prompt);
  view.deletedNote.hidden = automation.status !== "deleted";
  setAttribute(view.deletedNote.querySelector("mw-ago"), "at", automation.deleted_at);
  const alert = formatAlert(automation);
  const note = alert ||
    (automation.status === "paused"
      ? `${formatPause(automation)}${needsAttention(automation) ? `. ${formatLastRun(automation)}` : ""}`
      : formatLastRun(automation));
  view.note.hidden = automation.status === "deleted";
  view.note.classList.toggle("warning", Boolean(alert) || needsAttention(automation));
  setText(view.note, note);
  view.chainPanel.hidden = data.nodes.length < 2;
  if (data.nodes.length > 1) drawChain(view.chain, data.nodes, automation.id);
  const fired = new Set(data.firings.map((firing) => firing.task_id));
  for (const run of runs) run.fired = fired.has(run.task_id);
  renderKeyed(view.runs, runs, (run) => run.task_id, createRunRow, updateRunRow);
  view.table.hidden = !runs.length;
  view.noRuns.hidden = runs.length > 0;
  renderKeyed(view.times, automation.next_runs.map((at) => ({ at })), (run) => run.at,
    ({ at }) => h("li", h("time.num", { dateTime: at, title: at }, formatMoment(at)), createAgo(at)));
  view.noTimes.hidden = automation.next_runs.length > 0;
  drawTriggers(view.fired, data);
  drawFacts(view.facts, automation, data.when);
}

const SHOWN = {
  active: ["run", "pause", "stop", "edit", "remove"], paused: ["run", "resume", "stop", "edit", "remove"],
  deleted: ["restore"],
};

function drawButtons(place, automation) {
  place.item = automation;
  const resume = (label) =>
    createActionButton(label, () => post(`/automations/${automation.id}/resume`),
      { kind: "primary", iconName: "retry" });
  const make = {
    run: () => createActionButton("Run now", () => runNow(place.item), { iconName: "play" }),
    pause: () =>
      createActionButton("Pause", () => post(`/automations/${automation.id}/pause`),
        { iconName: "pause", title: "Pause the automation; an open run goes on to its end" }),
    stop: () =>
      createActionButton("Stop", () => post(`/automations/${automation.id}/pause?stop=true`),
        { iconName: "stop", title: "Cancel the open run at once and pause the automation" }),
    resume: () => resume("Resume"),
    restore: () => resume("Restore"),
    edit: () => h("a.button", { href: `/automations/${automation.id}?edit=1` }, icon("edit"), h("span", "Edit")),
    remove: () => createActionButton("Delete", () => deleteAutomation(place.item), { kind: "danger", iconName: "bin" }),
  };
  renderButtons(place, SHOWN[automation.status] ?? [], make, { run: automation.running, stop: !automation.running });
}

async function deleteAutomation(automation) {
  const question =
    "Delete this automation? A current run is cancelled. You can restore the automation within 30 days, " +
    `here or with: midwatch automation resume ${automation.id}`;
  if (!(await confirmAction(question, "Delete automation"))) return;
  await del(`/automations/${automation.id}`);
  showToast("Deleted. You can restore it within 30 days.");
}

function createRunRow(run) {
  const parts = {
    ...createRunParts(run), started: h("td.num"), outcome: h("td"), tokens: h("td.num"),
    scheduled: h("td.num", run.scheduled_for ? formatMoment(run.scheduled_for) : run.fired ? "trigger" : "manual"),
  };
  parts.scheduled.title = run.scheduled_for ? formatDateTime(run.scheduled_for) : "";
  parts.outcome.append(parts.status);
  return Object.assign(h("tr", parts.scheduled, parts.started, h("td.num", parts.time), parts.outcome, parts.tokens,
    h("td", createTaskLink(run.task_id, "task"))), { parts });
}

function updateRunRow(node, run) {
  updateRun(node.parts, run);
  setText(node.parts.started, run.started_at ? formatMoment(run.started_at) : "–").title = run.started_at
    ? formatDateTime(run.started_at)
    : "";
  const tokens = sumTokens(run.usage);
  setText(node.parts.tokens, tokens === null ? "–" : formatTokens(tokens));
  node.parts.outcome.title = run.error ?? (run.outcome === "skipped" ? run.result : formatOutcome(run));
}

const MISSED = { skip: "skipped", once: "run once", once_within: "run once" };

const OVERLAPS = {
  skip: "a due run is skipped", queue: "one due run waits", replace: "a due run replaces the open run",
};

const formatLimits = (budget) => budget &&
  `at most ${LIMIT_NAMES.filter((name) => budget[name]).map((name) => formatAmount(name, budget[name])).join(", ")}`;

function drawFacts(list, automation, when) {
  const missed = automation.missed === "once_within"
    ? `${MISSED.once_within}, within ${formatPeriod(automation.missed_window)}`
    : MISSED[automation.missed];
  renderFacts(list, [
    ["Schedule", when], ["Time zone", automation.zone], ["Agent", automation.agent], ["Directory", automation.workdir],
    ["Session", automation.fresh ? "a new one for each run" : createSessionLink(automation.session_key)],
    ["Runs", automation.max_runs ? `${automation.run_count} of ${automation.max_runs}` : String(automation.run_count)],
    ["Last run", automation.last_run_at ? formatDateTime(automation.last_run_at) : "–"],
    ["Failures", automation.consecutive_failures ? `${automation.consecutive_failures} in a row` : "none"],
    ["Missed runs", missed], ["Name", automation.name], ["Overlap", OVERLAPS[automation.overlap]],
    ["Waiting run", automation.waiting_run_at ? `due ${formatDateTime(automation.waiting_run_at)}` : null],
    ["Days off", automation.days_off.join(", ")], ["Quiet hours", automation.quiet_hours.join(", ")],
    ["Runs if", automation.when_command &&
      `${automation.when_command} (at most ${formatPeriod(automation.when_timeout)})`],
    ["Variables", Object.entries(automation.env ?? {}).map(([name, value]) => `${name}=${value}`).join(" ")],
    ["Earlier results", automation.history ? `the last ${automation.history}, in the prompt` : null],
    ["Each run", formatLimits(automation.budget)], ["When spent", MODES[automation.on_budget]],
    ["Timeout", automation.timeout_seconds ? formatPeriod(automation.timeout_seconds) : null],
    ["Jitter", automation.jitter_seconds ? `up to ${formatPeriod(automation.jitter_seconds)}` : null],
    ["Quiet", automation.quiet ? `a reply “${automation.quiet}” is not sent` : null], ["Notify", automation.route],
    ["Notices", automation.notices],
    ["Tags", automation.tags.join(", ")],
    ["Created", `${formatDateTime(automation.created_at)}${automation.creator ? ` by ${automation.creator}` : ""}`],
  ]);
}
