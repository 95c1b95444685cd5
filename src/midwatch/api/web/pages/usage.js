// Usage: tokens and money by day, agent, actor, session and model. What no agent reported is unknown.

import { buildQuery, get, trackRequests } from "../api.js";
import { go, showLoadFailure } from "../app.js";
import "../bars.js";
import { h, limitToFrame, renderKeyed, setText } from "../dom.js";
import { formatDollars, formatMissingUsage, formatTokens, sumTokens } from "../figures.js";
import { createCommand, createEmpty, createPageHead, createPanel, createSegments, createSkeleton } from "../parts.js";
import { stream } from "../stream.js";
import { formatDuration, getMidnight, now } from "../time.js";

const DAY = 86400000;
const GROUPS = ["day", "agent", "actor", "session", "model"];
const RANGES = [["1", "today"], ["7", "7 days"], ["30", "30 days"], ["90", "90 days"]];
const COUNTS = [
  ["cost", "cost", (group) => group.cost_usd, formatDollars], ["tokens", "tokens", sumTokens, formatTokens],
  ["tasks", "tasks", (group) => group.tasks, (count) => `${count ?? 0} ${count === 1 ? "task" : "tasks"}`],
];
const SOON = 1500;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export default async function renderUsage(main, page) {
  page.setTitle("Usage");
  main.className = "usage-page";
  const filter = {
    by: GROUPS.includes(page.search.get("by")) ? page.search.get("by") : "day", days: page.search.get("days") ?? "7",
    of: page.search.get("of") ?? "",
  };
  const view = buildPage(main, filter);
  const data = {};
  const draw = limitToFrame(() => page.isCurrent() && data.days && drawAll(view, data, filter));
  const startRequest = trackRequests();
  const read = async () => {
    const { accept } = startRequest();
    // three hours more, because a day may have 23 or 25 hours
    const since = new Date(Date.parse(getMidnight()) - (Number(filter.days) - 1) * DAY + 3600000 * 3);
    since.setHours(0, 0, 0, 0);
    const period = { since: since.toISOString(), zone };
    const [days, rows] = await Promise.all([
      get(`/usage${buildQuery({ ...period, by: "day" })}`),
      filter.by === "day" ? null : get(`/usage${buildQuery({ ...period, by: filter.by, limit: 200 })}`),
    ]);
    if (!accept()) return;
    Object.assign(data, { since, days, rows: rows ?? days });
    draw();
  };
  let waiting = null;
  const again = () => {
    waiting ??= setTimeout(() => { waiting = null; if (page.isCurrent()) read().catch(() => {}); }, SOON);
  };
  page.onLeave(() => clearTimeout(waiting));
  page.onLeave(stream.on({ event: ({ kind }) => kind === "task_finished" && again(), reset: again }));
  await read().catch((problem) => showLoadFailure(page, view.body, problem));
}

function buildPage(main, filter) {
  const change = (changes) => go(`/usage${buildQuery({ ...filter, ...changes })}`, { replace: true });
  const segments = (label, name, choices) =>
    createSegments(label, choices, filter[name], (value) => change({ [name]: value }));
  const view = {
    tiles: {}, chart: document.createElement("mw-bars"), rows: h("tbody"), note: h("p.hint.usage-note"),
    of: h("div.segments.small", { role: "group", "aria-label": "Value in the chart" }),
  };
  const tile = (name, label) =>
    h("div.tile", { data: { tile: name } }, h("dt", label), (view.tiles[name] = h("dd.num", "–")));
  const chart = createPanel("Usage per day", { name: "usage-chart", actions: [view.of] });
  chart.body.classList.add("padded");
  chart.body.append(view.chart);
  view.table = h("div.scroll-x", { hidden: true },
    h("table.plain.usage-table",
      h("thead",
        h("tr", h("th", filter.by[0].toUpperCase() + filter.by.slice(1)),
          ["Tasks", "Failed", "Time"].map((name) => h("th.num", name)),
          ["in", "out"].map((name) => h("th.num", h("span.long", "Tokens "), name)), h("th.num", "Cost"))),
      view.rows));
  view.none = createEmpty("No finished tasks in this period", "Usage is counted when a task ends.",
    createCommand("midwatch usage --since 30d --by day"));
  view.none.hidden = true;
  view.loading = createSkeleton(5);
  const { node, body } = createPanel(`By ${filter.by}`, { name: "usage-rows" });
  body.append(view.loading, view.table, view.none);
  view.body = body;
  main.append(
    createPageHead("Usage"),
    h("div.filters", { role: "search" }, segments("Period", "days", RANGES),
      segments("Group by", "by", GROUPS.map((name) => [name, name]))),
    h("dl.tiles.usage-tiles", tile("tasks", "tasks"), tile("seconds", "work time"), tile("in", "tokens in"),
      tile("out", "tokens out"), tile("cost", "cost")),
    view.note, chart.node, node);
  return view;
}

function drawAll(view, data, filter) {
  const { total } = data.days;
  view.loading.remove();
  setText(view.tiles.tasks, total.tasks);
  setText(view.tiles.seconds, formatDuration(total.seconds));
  drawFigure(view.tiles.in, total.input_tokens, total.tasks ? formatTokens : () => "–");
  drawFigure(view.tiles.out, total.output_tokens, total.tasks ? formatTokens : () => "–");
  drawFigure(view.tiles.cost, total.cost_usd, total.tasks ? formatDollars : () => "–");
  const missing = formatMissingUsage(total);
  setText(view.note,
    missing ? `${missing[0].toUpperCase()}${missing.slice(1)}.`
      : total.tasks ? "All tasks reported their usage."
      : "");
  drawChart(view, data, filter);
  const rows = filter.by === "day" ? [...data.rows.rows].reverse() : data.rows.rows;
  view.table.hidden = !rows.length;
  view.none.hidden = rows.length > 0;
  const rowsWithRest = data.rows.left_off ? [...rows, { more: data.rows.left_off }] : rows;
  renderKeyed(view.rows, rowsWithRest, (group) => (group.more ? "more" : `${group[filter.by]}`),
    (group) => createRow(group, filter.by), updateRow);
}

/** Draw all days of the period; a day without finished tasks is empty. */
function drawChart(view, data, filter) {
  const rowsByDay = new Map(data.days.rows.map((day) => [day.day, day]));
  const days = [];
  for (const day = new Date(data.since); day.getTime() <= now(); day.setDate(day.getDate() + 1)) {
    const name =
      `${day.getFullYear()}-${String(day.getMonth() + 1).padStart(2, "0")}-${String(day.getDate()).padStart(2, "0")}`;
    days.push({
      tasks: 0, cost_usd: null, ...rowsByDay.get(name),
      short: day.toLocaleDateString(undefined, { day: "numeric", month: "short" }),
      long: day.toLocaleDateString(undefined, { weekday: "short", day: "numeric", month: "long" }),
    });
  }
  const { total } = data.days;
  const chosen = COUNTS.find(([name]) => name === filter.of) ?? COUNTS.find(([, , of]) => of(total) != null);
  const [, label, of, text] = chosen;
  renderKeyed(view.of, COUNTS, ([name]) => name,
    ([name, words]) =>
      h("button", { type: "button", onclick: () => { filter.of = name; drawChart(view, data, filter); } }, words),
    (node, [name]) => node.setAttribute("aria-pressed", String(name === chosen[0])));
  view.chart.show(days, of, (value, day) => (value == null && day && !day.tasks ? "none" : text(value)),
    `Bar chart: ${label} of each day. The table below has the numbers.`);
}

const ROW_LINKS = {
  agent: (name) => `/tasks?agent=${encodeURIComponent(name)}`,
  actor: (name) => `/tasks?creator=${encodeURIComponent(name)}`,
  session: (name) => `/sessions/${encodeURIComponent(name)}`,
};
const NAMELESS = { session: "no session", model: "not reported", actor: "unknown" };
const CELLS = 6;

const formatDay = (name) =>
  new Date(`${name}T12:00`).toLocaleDateString(undefined, { weekday: "short", day: "numeric", month: "short" });

function createRow(group, by) {
  if (group.more) return h("tr", h("td.faint", { colSpan: CELLS + 1 }, `and ${group.more} more`));
  const name = group[by];
  const label = by === "day" ? h("time", { dateTime: name }, formatDay(name))
    : !name ? h("span.faint", NAMELESS[by] ?? "none")
    : ROW_LINKS[by] ? h("a.plain-text", { href: ROW_LINKS[by](name) }, name)
    : h("span.plain-text", name);
  const node = h("tr", h("td", label), Array.from({ length: CELLS }, () => h("td.num")));
  return node;
}

function updateRow(node, group) {
  if (group.more) return setText(node.firstChild, `and ${group.more} more`);
  const [, tasks, failed, time, input, output, cost] = node.children;
  setText(tasks, group.tasks);
  setText(failed, group.failed || "");
  failed.classList.toggle("bad-text", group.failed > 0);
  setText(time, formatDuration(group.seconds));
  drawFigure(input, group.input_tokens, formatTokens);
  drawFigure(output, group.output_tokens, formatTokens);
  drawFigure(cost, group.cost_usd, formatDollars);
  node.title = formatMissingUsage(group);
  return undefined;
}

function drawFigure(cell, value, text) {
  setText(cell, text(value));
  cell.classList.toggle("unknown", value == null);
}
