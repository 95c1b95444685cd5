// Automations: their next runs and how the last runs ended.

import { buildQuery, get, post, trackRequests } from "../api.js";
import { go, showLoadFailure } from "../app.js";
import { attention, getSubject, needsAttention } from "../attention.js";
import { desk } from "../desk.js";
import { h, limitToFrame, renderRows, setText } from "../dom.js";
import { icon } from "../icons.js";
import {
  createActionButton, createAgo, createCommand, createEmpty, createPageHead, createPanel, createSegments,
  createSkeleton, setAttribute, showToast,
} from "../parts.js";
import {
  createDots, followEvents, formatAlert, formatPause, getName, RUN_KINDS, updateDots, updateItemStatus,
} from "../automation-parts.js";
import "../strip.js";

const STATUSES = ["active", "paused", "deleted"];
const LISTED = 200;

export default async function renderAutomations(main, page) {
  page.setTitle("Automations");
  const status = page.search.get("status") ?? "";
  const list = h("ol.rows.automation-list", { "aria-label": "Automations" });
  const body = h("section.panel", list);
  const loading = h("section.panel", createSkeleton(8));
  const strip = document.createElement("mw-day");
  const day = createPanel("Next 24 hours", { name: "day" });
  const none = h("p.faint.padded", { hidden: true }, "No runs in the next 24 hours.");
  day.body.append(strip, none);
  // hidden until the data has arrived, so that nothing moves
  const content = h("div", { hidden: true }, day.node, body);
  main.append(
    createPageHead("Automations",
      h("a.button.primary.action", { href: "/automations/new" }, icon("plus"), h("span", "New automation"))),
    createFilters(status), loading, content);
  const data = { all: new Map(), days: new Map() };
  const draw = limitToFrame(() => {
    if (!page.isCurrent() || !data.loaded) return;
    const rows = [...data.all.values()]
      .filter((automation) => (status ? automation.status === status : automation.status !== "deleted"))
      .sort((a, b) => (a.id < b.id ? 1 : -1));
    renderRows(list, rows, (automation) => automation.id, createRow,
      (node, automation) => updateRow(node, automation, data.days.get(automation.id)));
    const lanes = rows.map((automation) => createLane(automation, data.days.get(automation.id)));
    day.node.hidden = status === "deleted" || !rows.length;
    strip.show(lanes);
    const ahead = lanes.some((createLane) => createLane.ahead.length || createLane.behind.length);
    none.hidden = ahead;
    strip.hidden = !ahead;
    body.querySelector(".empty")?.remove();
    if (!rows.length) body.append(createEmptyList(status));
  });
  const startRequest = trackRequests();
  const read = async (id = null) => {
    const { accept } = startRequest();
    const [reply, days] = id
      ? await Promise.all([
        get(`/automations/${id}`).then((automation) => ({ automations: [automation] })), get(`/schedules/day?id=${id}`),
      ])
      : await Promise.all([
        get(`/automations${buildQuery({ status, limit: LISTED })}`),
        get(`/schedules/day${buildQuery({ status, limit: LISTED })}`),
      ]);
    if (!page.isCurrent()) return;
    loading.remove();
    content.hidden = false;
    for (const automation of reply.automations) if (accept(automation.id)) data.all.set(automation.id, automation);
    for (const day of days.days) if (accept(`day ${day.id}`)) data.days.set(day.id, day);
    data.loaded = true;
    draw();
  };
  const runs = new Map(); // task id to automation id
  const findSubject = (event) => {
    if (event.kind === "automation_fired") runs.set(event.payload.task_id, event.payload.automation_id);
    if (event.payload?.automation_id) return getSubject(event);
    if (!RUN_KINDS.has(event.kind)) return null;
    return runs.get(event.task_id) ??
      [...data.days.values()].find((day) => day.runs.some((run) => run.task_id === event.task_id))?.id ?? null;
  };
  const first = read();
  followEvents(page, {
    first, findSubject, read: (id) => read(id).catch(() => {}),
    reset: () => { data.all.clear(); read().catch(() => {}); },
  });
  page.onLeave(attention.on(draw));
  await first.catch((problem) => showLoadFailure(page, loading, problem));
}

function createLane(automation, day) {
  const behind = (day?.runs ?? [])
    .filter((run) => run.started_at)
    .map((run) => ({ at: Date.parse(run.started_at), status: run.status }));
  return {
    id: automation.id, name: getName(automation),
    ahead: automation.status === "active" ? (day?.next_runs ?? []).map((at) => Date.parse(at)) : [], behind,
  };
}

function createFilters(status) {
  const change = (name) => go(`/automations${buildQuery({ status: name })}`, { replace: true });
  const choices = ["", ...STATUSES].map((name) => [name, name || "all"]);
  return h("div.filters", createSegments("Status", choices, status, change));
}

function createEmptyList(status) {
  if (status)
    return createEmpty(`No ${status} automations`,
      status === "deleted" ? "Deleted automations are listed here for 30 days and can be restored." : "",
      h("a.button", { href: "/automations" }, "Clear filters"));
  return createEmpty("No automations yet",
    "An automation runs a prompt once at a set time, at an interval, or by a calendar schedule.",
    h("a.button.primary.action", { href: "/automations/new" }, "New automation"),
    createCommand('midwatch automation add --cron "0 9 * * 1-5" "Sum up what is new"'));
}

/** Start a run now. */
export async function runNow(automation) {
  await post(`/automations/${automation.id}/run`);
  showToast(`Started ${getName(automation)}.`);
}

function createRow(automation) {
  const parts = {
    status: h("span.status"), title: h("span.truncate.row-title"), when: h("span.truncate.dim.when"),
    dots: createDots(),
    next: createAgo(null), sub: h("span.truncate"),
    run: createActionButton("", () => runNow(automation), { kind: "icon-button", iconName: "play", title: "Run now" }),
    pause: createActionButton("", () => post(`/automations/${automation.id}/pause`),
      { kind: "icon-button", iconName: "pause", title: "Pause" }),
    resume: createActionButton("", () => post(`/automations/${automation.id}/resume`),
      { kind: "icon-button", iconName: "retry", title: "Resume" }),
  };
  const link = h("a.row.automation-row", { href: `/automations/${automation.id}` }, parts.status, parts.title,
    parts.when,
    parts.dots, parts.next, h("span.row-sub.truncate", parts.sub));
  return Object.assign(h("li", link, h("span.row-actions.action", parts.run, parts.pause, parts.resume)), { parts });
}

function updateRow(node, automation, day) {
  const { status, title, when, dots: marks, next, sub, run, pause, resume } = node.parts;
  updateItemStatus(status, automation);
  setText(title, getName(automation));
  setText(when, day?.when ?? "").title = day?.when ?? "";
  updateDots(marks, day?.runs ?? []);
  setAttribute(next, "at", automation.next_run_at);
  const alert = formatAlert(automation);
  const care = needsAttention(automation);
  sub.className = alert || care ? "truncate warn-text" : "truncate";
  setText(sub, alert || (automation.status === "paused" ? formatPause(automation) : formatLastRun(automation)));
  const name = getName(automation);
  run.setAttribute("aria-label", `Run ${name} now`);
  pause.setAttribute("aria-label", `Pause ${name}`);
  resume.setAttribute("aria-label", `Resume ${name}`);
  run.hidden = automation.status === "deleted" || !desk.may.act;
  run.disabled = automation.running;
  pause.hidden = automation.status !== "active" || !desk.may.act;
  resume.hidden = automation.status === "active" || !desk.may.act;
}

/** Return how the last run ended. */
export function formatLastRun(automation) {
  if (!automation.last_result) return automation.run_count ? "The first run has not ended yet" : "Not run yet";
  const [, word, rest] = /^(\w+): ?(.*)$/s.exec(automation.last_result) ?? [null, automation.last_result, ""];
  const text = {
    ok: "The last run succeeded", cancelled: "The last run was cancelled", lost: "The last run was lost",
    error: "The last run failed", replaced: "The last run was replaced by the next one",
  }[word] ?? word;
  const reason = ["ok", "cancelled", "replaced"].includes(word) ? "" : `: ${rest}`;
  const failures = automation.consecutive_failures;
  return `${text}${reason}${failures > 1 ? ` (${failures} in a row)` : ""}`;
}
