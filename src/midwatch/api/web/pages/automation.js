// One automation: what it does, when, and every run it had.

import { asking, del, get, post } from "../api.js";
import { attention, needsCare } from "../attention.js";
import { desk } from "../desk.js";
import { h, keyed, perFrame, say } from "../dom.js";
import { icon } from "../icons.js";
import {
  actButton, agoOf, attribute, buttons, command, confirmed, copyButton, empty, pageHead, panel, sessionLink, skeleton,
  taskLink, toast,
} from "../parts.js";
import {
  alertLine, follow, known, nameOf, outcomeText, RUN_KINDS, runParts, short, tokensOf, updateRun, updateStanding,
} from "../automation-parts.js";
import { dateTime, length, moment } from "../time.js";
import { automationForm } from "./automation-form.js";
import { lastText, runNow } from "./automations.js";

const HISTORY = 100;

export default async function automation(main, page) {
  const id = page.params.id;
  page.setTitle("Automation");
  if (page.search.has("edit") && desk.may.act) {
    const one = await get(`/automations/${encodeURIComponent(id)}`);
    return page.isShown() ? automationForm(main, page, one) : undefined;
  }
  main.className = "task-page standing-page";
  const view = build(main, id);
  const data = { one: null, when: "", runs: [] };
  const draw = perFrame(() => page.isShown() && data.one && drawAll(view, data, page));
  const ask = asking();
  const read = async () => {
    const { isNext } = ask();
    const path = `/automations/${encodeURIComponent(id)}`;
    const [one, history, days] = await Promise.all([
      get(path), get(`${path}/history?limit=${HISTORY}`), get(`/schedules/day?id=${encodeURIComponent(id)}`),
    ]);
    if (!isNext()) return;
    Object.assign(data, { one, runs: history.runs, when: days.days[0]?.when ?? "" });
    draw();
  };
  const mine = new Set();
  const concerns = (event) => {
    if (event.payload?.automation_id === id) {
      if (event.payload.task_id) mine.add(event.payload.task_id);
      return id;
    }
    return RUN_KINDS.has(event.kind) &&
      (mine.has(event.task_id) || data.runs.some((run) => run.task_id === event.task_id))
      ? id
      : null;
  };
  const first = read();
  follow(page, { first, concerns, read: () => read().catch(() => {}), reset: () => read().catch(() => {}) });
  page.whenLeft(attention.on(draw));
  return first;
}

function build(main, id) {
  const view = {
    title: h("h1.cut", "…"), status: h("span.status", { role: "status" }), when: h("span"), next: agoOf(null),
    nextLine: h("span.dim"), buttons: h("span.task-buttons.acts"),
    prompt: h("div.said"), runs: h("tbody"), times: h("ol.times"), facts: h("dl.facts"),
    told: h("p.told.standing-note"),
    gone: h("div.standing-note.gone", { hidden: true }),
    noRuns: empty("No runs yet", "Each run is a task; it is listed here when it begins."),
    noTimes: h("p.faint", "It has no next run."),
  };
  view.nextLine.append("next run ", view.next);
  const prompt = panel("Prompt", { actions: [copyButton(() => view.prompt.textContent, "Copy the prompt")] });
  prompt.body.classList.add("padded");
  prompt.body.append(view.prompt);
  const runs = panel("Runs", { name: "runs" });
  view.table = h("div.scroll-x", h("table.plain.runs-table",
    h("thead", h("tr", ["Scheduled for", "Started", "Duration", "Outcome", "Tokens", ""].map((name) => h("th", name)))),
    view.runs));
  runs.body.append(view.table, view.noRuns);
  const times = panel("Next runs", { name: "next-runs" });
  times.body.classList.add("padded");
  times.body.append(view.times, view.noTimes);
  const about = panel("About");
  about.body.classList.add("padded");
  about.body.append(view.facts);
  view.gone.append(
    h("p", h("b", "Deleted "), agoOf(null),
      ". It fires no more, and after 30 days it is gone for good. Until then it can be brought back here, or with"),
    command(`midwatch automation resume ${id}`));
  const head = pageHead("");
  head.replaceChildren(h("nav.crumbs", { "aria-label": "Where" }, h("a", { href: "/automations" }, "Automations")),
    view.title, h("span.spacer"), view.buttons);
  view.body = h("div", { hidden: true }, head,
    h("p.task-line", view.status, view.when, view.nextLine, h("span.spacer"), h("code.faint", id)),
    view.gone, view.told,
    h("div.task-grid", h("div.stack", prompt.node, runs.node), h("div.stack", times.node, about.node)));
  view.loading = skeleton(8);
  main.append(view.loading, view.body);
  return view;
}

function drawAll(view, data, page) {
  const { one, runs } = data;
  view.loading.remove();
  view.body.hidden = false;
  const name = nameOf(one);
  page.setTitle(name);
  say(view.title, name).title = name;
  updateStanding(view.status, one);
  say(view.when, data.when);
  attribute(view.next, "at", one.next_run_at);
  view.nextLine.hidden = !one.next_run_at;
  drawButtons(view.buttons, one);
  say(view.prompt, one.prompt);
  view.gone.hidden = one.status !== "deleted";
  attribute(view.gone.querySelector("mw-ago"), "at", one.deleted_at);
  const alert = alertLine(one);
  const note = alert ||
    (one.status === "paused"
      ? `paused: ${one.paused_why ?? ""}${needsCare(one) ? `; ${lastText(one)}` : ""}`
      : lastText(one));
  view.told.hidden = one.status === "deleted";
  view.told.classList.toggle("care", Boolean(alert) || needsCare(one));
  say(view.told, note);
  keyed(view.runs, runs, (run) => run.task_id, runRow, updateRow);
  view.table.hidden = !runs.length;
  view.noRuns.hidden = runs.length > 0;
  keyed(view.times, one.next_runs.map((at) => ({ at })), (run) => run.at,
    ({ at }) => h("li", h("time.num", { dateTime: at, title: at }, moment(at)), agoOf(at)));
  view.noTimes.hidden = one.next_runs.length > 0;
  drawFacts(view.facts, one, data.when);
}

const SHOWN = {
  active: ["run", "pause", "edit", "remove"], paused: ["run", "resume", "edit", "remove"], deleted: ["back"],
};

function drawButtons(place, one) {
  place.one = one;
  const resume = (label) =>
    actButton(label, () => post(`/automations/${one.id}/resume`), { kind: "primary", iconName: "retry" });
  const make = {
    run: () => actButton("Run now", () => runNow(place.one), { iconName: "play" }),
    pause: () => actButton("Pause", () => post(`/automations/${one.id}/pause`), { iconName: "pause" }),
    resume: () => resume("Resume"),
    back: () => resume("Bring back"),
    edit: () => h("a.button", { href: `/automations/${one.id}?edit=1` }, icon("edit"), h("span", "Edit")),
    remove: () => actButton("Delete", () => removed(place.one), { kind: "danger", iconName: "bin" }),
  };
  buttons(place, SHOWN[one.status] ?? [], make, { run: one.running });
}

async function removed(one) {
  const question =
    "Delete this automation? A run that goes on is cancelled. For 30 days it can be brought back, " +
    `here or with: midwatch automation resume ${one.id}`;
  if (!(await confirmed(question, "Delete it"))) return;
  await del(`/automations/${one.id}`);
  toast("Deleted. It can be brought back for 30 days.");
}

function runRow(run) {
  const parts = {
    ...runParts(run), started: h("td.num"), outcome: h("td"), tokens: h("td.num"),
    scheduled: h("td.num", run.scheduled_for ? moment(run.scheduled_for) : "by hand"),
  };
  parts.scheduled.title = run.scheduled_for ? dateTime(run.scheduled_for) : "";
  parts.outcome.append(parts.status);
  const node = h("tr", parts.scheduled, parts.started, h("td.num", parts.time), parts.outcome, parts.tokens,
    h("td", taskLink(run.task_id, "task")));
  node.parts = parts;
  return node;
}

function updateRow(node, run) {
  updateRun(node.parts, run);
  say(node.parts.started, run.started_at ? moment(run.started_at) : "–").title = run.started_at
    ? dateTime(run.started_at)
    : "";
  const tokens = tokensOf(run);
  say(node.parts.tokens, tokens === null ? "–" : short(tokens));
  node.parts.outcome.title = run.error ?? outcomeText(run);
}

const MISSED = { skip: "left out", once: "made up for once", once_within: "made up for once" };

function drawFacts(list, one, when) {
  const missed = one.missed === "once_within"
    ? `${MISSED.once_within}, within ${length(one.missed_window)}`
    : MISSED[one.missed];
  const facts = known([
    ["When", when], ["Zone", one.zone], ["Agent", one.agent], ["Directory", one.workdir],
    ["Session", one.fresh ? "a fresh one for each run" : sessionLink(one.session_key)],
    ["Runs", one.max_runs ? `${one.run_count} of ${one.max_runs}` : String(one.run_count)],
    ["Last run", one.last_run_at ? dateTime(one.last_run_at) : "–"],
    ["Failures", one.consecutive_failures ? `${one.consecutive_failures} in a row` : "none"], ["Missed runs", missed],
    ["Timeout", one.timeout_seconds ? length(one.timeout_seconds) : null],
    ["Jitter", one.jitter_seconds ? `up to ${length(one.jitter_seconds)}` : null],
    ["Quiet", one.quiet ? `a reply of “${one.quiet}” is not delivered` : null], ["Route", one.route],
    ["Tags", one.tags.join(", ")],
    ["Made", `${dateTime(one.created_at)}${one.creator ? ` by ${one.creator}` : ""}`],
  ]);
  keyed(list, facts, ([name]) => name, ([name]) => h("div.fact", h("dt", name), h("dd")), (node, [, value]) => {
    if (value instanceof Node) {
      if (node.lastChild.textContent !== value.textContent) node.lastChild.replaceChildren(value);
    } else say(node.lastChild, value);
  });
}
