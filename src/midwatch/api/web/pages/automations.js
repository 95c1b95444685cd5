// Automations: what agents do by themselves, when it comes next, and how it went.

import { asking, get, post, query } from "../api.js";
import { go } from "../app.js";
import { attention, needsCare, subjectOf } from "../attention.js";
import { desk } from "../desk.js";
import { h, perFrame, placed, say } from "../dom.js";
import { icon } from "../icons.js";
import { actButton, agoOf, attribute, command, empty, failure, pageHead, panel, skeleton, toast } from "../parts.js";
import { alertLine, dots, follow, nameOf, RUN_KINDS, updateDots, updateStanding } from "../automation-parts.js";
import "../strip.js";

const STATUSES = ["active", "paused", "deleted"];
const LISTED = 200;

export default async function automations(main, page) {
  page.setTitle("Automations");
  const status = page.search.get("status") ?? "";
  const list = h("ol.rows.automation-list", { "aria-label": "Automations" });
  const body = h("section.panel", list);
  const loading = h("section.panel", skeleton(8));
  const strip = document.createElement("mw-day");
  const day = panel("Next 24 hours", { name: "day" });
  const none = h("p.faint.padded", { hidden: true }, "Nothing is due in the next 24 hours.");
  day.body.append(strip, none);
  // shown when there is something to show, so that nothing moves
  const content = h("div", { hidden: true }, day.node, body);
  main.append(
    pageHead("Automations",
      h("a.button.primary.acts", { href: "/automations/new" }, icon("plus"), h("span", "New automation"))),
    filters(status), loading, content);
  const data = { all: new Map(), days: new Map() };
  const draw = perFrame(() => {
    if (!page.isShown() || !data.loaded) return;
    const rows = [...data.all.values()]
      .filter((one) => (status ? one.status === status : one.status !== "deleted"))
      .sort((a, b) => (a.id < b.id ? 1 : -1));
    placed(list, rows, (one) => one.id, row, (node, one) => update(node, one, data.days.get(one.id)));
    const lanes = rows.map((one) => lane(one, data.days.get(one.id)));
    day.node.hidden = status === "deleted" || !rows.length;
    strip.show(lanes);
    const ahead = lanes.some((one) => one.ahead.length || one.behind.length);
    none.hidden = ahead;
    strip.hidden = !ahead;
    body.querySelector(".empty")?.remove();
    if (!rows.length) body.append(nothing(status));
  });
  const ask = asking();
  const read = async (id = null) => {
    const { isNext } = ask();
    const [found, days] = id
      ? await Promise.all([
        get(`/automations/${id}`).then((one) => ({ automations: [one] })), get(`/schedules/day?id=${id}`),
      ])
      : await Promise.all([
        get(`/automations${query({ status, limit: LISTED })}`),
        get(`/schedules/day${query({ status, limit: LISTED })}`),
      ]);
    if (!page.isShown()) return;
    loading.remove();
    content.hidden = false;
    for (const one of found.automations) if (isNext(one.id)) data.all.set(one.id, one);
    for (const one of days.days) if (isNext(`day ${one.id}`)) data.days.set(one.id, one);
    data.loaded = true;
    draw();
  };
  const runs = new Map(); // whose run a task is
  const concerns = (event) => {
    if (event.kind === "automation_fired") runs.set(event.payload.task_id, event.payload.automation_id);
    if (event.payload?.automation_id) return subjectOf(event);
    if (!RUN_KINDS.has(event.kind)) return null;
    return runs.get(event.task_id) ??
      [...data.days.values()].find((one) => one.runs.some((run) => run.task_id === event.task_id))?.id ?? null;
  };
  const first = read();
  follow(page, {
    first, concerns, read: (id) => read(id).catch(() => {}),
    reset: () => { data.all.clear(); read().catch(() => {}); },
  });
  page.whenLeft(attention.on(draw));
  try {
    await first;
  } catch (problem) {
    if (page.isShown())
      loading.replaceChildren(failure(problem, () => go(location.pathname + location.search, { replace: true })));
  }
}

function lane(one, day) {
  const behind = (day?.runs ?? [])
    .filter((run) => run.started_at)
    .map((run) => ({ at: Date.parse(run.started_at), status: run.status }));
  return {
    id: one.id, name: nameOf(one),
    ahead: one.status === "active" ? (day?.next_runs ?? []).map((at) => Date.parse(at)) : [], behind,
  };
}

function filters(status) {
  const change = (name) => go(`/automations${query({ status: name })}`, { replace: true });
  return h("div.filters", h("div.segments", { role: "group", "aria-label": "Status" },
    ["", ...STATUSES].map((name) => h("button",
      { type: "button", "aria-pressed": String(status === name), onclick: () => change(name) }, name || "all"))));
}

function nothing(status) {
  if (status)
    return empty(`No automation is ${status}`,
      status === "deleted" ? "What is deleted can be brought back for 30 days; it is listed here." : "",
      h("a.button", { href: "/automations" }, "Show all"));
  return empty("No automations yet",
    "An automation is a prompt that an agent gets again and again: at one moment, at an interval, or by the calendar.",
    h("a.button.primary.acts", { href: "/automations/new" }, "New automation"),
    command('midwatch automation add --cron "0 9 * * 1-5" "Sum up what is new"'));
}

/** Run it now, and say where. */
export async function runNow(one) {
  await post(`/automations/${one.id}/run`);
  toast(`${nameOf(one)} runs.`);
}

function row(one) {
  const parts = {
    status: h("span.status"), title: h("span.cut.row-title"), when: h("span.cut.dim.when"), dots: dots(),
    next: agoOf(null), sub: h("span.cut"),
    run: actButton("", () => runNow(one), { kind: "icon-button", iconName: "play", title: "Run now" }),
    pause: actButton("", () => post(`/automations/${one.id}/pause`),
      { kind: "icon-button", iconName: "pause", title: "Pause" }),
    resume: actButton("", () => post(`/automations/${one.id}/resume`),
      { kind: "icon-button", iconName: "retry", title: "Resume" }),
  };
  const link = h("a.row.automation-row", { href: `/automations/${one.id}` }, parts.status, parts.title, parts.when,
    parts.dots, parts.next, h("span.row-sub.cut", parts.sub));
  const node = h("li", link, h("span.row-acts.acts", parts.run, parts.pause, parts.resume));
  node.parts = parts;
  return node;
}

function update(node, one, day) {
  const { status, title, when, dots: marks, next, sub, run, pause, resume } = node.parts;
  updateStanding(status, one);
  say(title, nameOf(one));
  say(when, day?.when ?? "").title = day?.when ?? "";
  updateDots(marks, day?.runs ?? []);
  attribute(next, "at", one.next_run_at);
  const alert = alertLine(one);
  const care = needsCare(one);
  sub.className = alert || care ? "cut warn-text" : "cut";
  say(sub, alert || (one.status === "paused" ? `paused: ${one.paused_why ?? ""}` : lastText(one)));
  const name = nameOf(one);
  run.setAttribute("aria-label", `Run ${name} now`);
  pause.setAttribute("aria-label", `Pause ${name}`);
  resume.setAttribute("aria-label", `Resume ${name}`);
  run.hidden = one.status === "deleted" || !desk.may.act;
  run.disabled = one.running;
  pause.hidden = one.status !== "active" || !desk.may.act;
  resume.hidden = one.status === "active" || !desk.may.act;
}

/** How the last run ended, in words. */
export function lastText(one) {
  if (!one.last_result) return one.run_count ? "its first run has not ended yet" : "has not run yet";
  const [, word, rest] = /^(\w+): ?(.*)$/s.exec(one.last_result) ?? [null, one.last_result, ""];
  const text = {
    ok: "the last run went well", cancelled: "the last run was cancelled", lost: "the last run was lost",
    error: "the last run failed",
  }[word] ?? word;
  const told = ["ok", "cancelled"].includes(word) ? "" : `: ${rest}`;
  return `${text}${told}${one.consecutive_failures > 1 ? ` (${one.consecutive_failures} in a row)` : ""}`;
}
