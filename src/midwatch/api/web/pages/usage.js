// Usage: tokens and money by day, agent, actor, session and model. What nobody told is unknown.

import { asking, get, query } from "../api.js";
import { go } from "../app.js";
import "../bars.js";
import { h, keyed, perFrame, say } from "../dom.js";
import { dollars, tokens, untoldText } from "../figures.js";
import { command, empty, failure, pageHead, panel, skeleton } from "../parts.js";
import { stream } from "../stream.js";
import { duration, midnight, now } from "../time.js";

const DAY = 86400000;
const PARTS = ["day", "agent", "actor", "session", "model"];
const RANGES = [["1", "today"], ["7", "7 days"], ["30", "30 days"], ["90", "90 days"]];
const COUNTS = [
  ["cost", "cost", (one) => one.cost_usd, dollars], ["tokens", "tokens", (one) => both(one), tokens],
  ["tasks", "tasks", (one) => one.tasks, (count) => `${count ?? 0} ${count === 1 ? "task" : "tasks"}`],
];
const SOON = 1500;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

const both = (one) =>
  (one.input_tokens == null && one.output_tokens == null ? null : (one.input_tokens ?? 0) + (one.output_tokens ?? 0));

export default async function usage(main, page) {
  page.setTitle("Usage");
  main.className = "usage-page";
  const wanted = {
    by: PARTS.includes(page.search.get("by")) ? page.search.get("by") : "day", days: page.search.get("days") ?? "7",
    of: page.search.get("of") ?? "",
  };
  const view = build(main, wanted);
  const data = {};
  const draw = perFrame(() => page.isShown() && data.days && drawAll(view, data, wanted));
  const ask = asking();
  const read = async () => {
    const { isNext } = ask();
    // a day of 23 or 25 hours
    const since = new Date(Date.parse(midnight()) - (Number(wanted.days) - 1) * DAY + 3600000 * 3);
    since.setHours(0, 0, 0, 0);
    const asked = { since: since.toISOString(), zone };
    const [days, rows] = await Promise.all([
      get(`/usage${query({ ...asked, by: "day" })}`),
      wanted.by === "day" ? null : get(`/usage${query({ ...asked, by: wanted.by, limit: 200 })}`),
    ]);
    if (!isNext()) return;
    Object.assign(data, { since, days, rows: rows ?? days });
    draw();
  };
  let waiting = null;
  const again = () => {
    waiting ??= setTimeout(() => { waiting = null; if (page.isShown()) read().catch(() => {}); }, SOON);
  };
  page.whenLeft(() => clearTimeout(waiting));
  page.whenLeft(stream.on({ event: ({ kind }) => kind === "task_finished" && again(), reset: again }));
  try {
    await read();
  } catch (problem) {
    if (page.isShown())
      view.body.replaceChildren(failure(problem, () => go(location.pathname + location.search, { replace: true })));
  }
}

function build(main, wanted) {
  const change = (changes) => go(`/usage${query({ ...wanted, ...changes })}`, { replace: true });
  const segments = (label, name, choices) => h("div.segments", { role: "group", "aria-label": label },
    choices.map(([value, text]) =>
      h("button",
        { type: "button", "aria-pressed": String(wanted[name] === value), onclick: () => change({ [name]: value }) },
        text)));
  const view = {
    tiles: {}, chart: document.createElement("mw-bars"), rows: h("tbody"), note: h("p.hint.usage-note"),
    of: h("div.segments.small", { role: "group", "aria-label": "What the bars count" }),
  };
  const tile = (name, label) =>
    h("div.tile", { data: { tile: name } }, h("dt", label), (view.tiles[name] = h("dd.num", "–")));
  const chart = panel("Day by day", { name: "usage-chart", actions: [view.of] });
  chart.body.classList.add("padded");
  chart.body.append(view.chart);
  view.table = h("div.scroll-x", { hidden: true },
    h("table.plain.usage-table",
      h("thead",
        h("tr", h("th", wanted.by[0].toUpperCase() + wanted.by.slice(1)),
          ["Tasks", "Failed", "Time"].map((name) => h("th.num", name)),
          ["in", "out"].map((name) => h("th.num", h("span.long", "Tokens "), name)), h("th.num", "Cost"))),
      view.rows));
  view.none = empty("Nothing has ended in this time", "What tasks used is added up when they end.",
    command("midwatch usage --since 30d --by day"));
  view.none.hidden = true;
  view.loading = skeleton(5);
  const { node, body } = panel(`By ${wanted.by}`, { name: "usage-rows" });
  body.append(view.loading, view.table, view.none);
  view.body = body;
  main.append(
    pageHead("Usage"),
    h("div.filters", { role: "search" }, segments("Time", "days", RANGES),
      segments("By", "by", PARTS.map((name) => [name, name]))),
    h("dl.tiles.usage-tiles", tile("tasks", "tasks"), tile("seconds", "work"), tile("in", "tokens in"),
      tile("out", "tokens out"), tile("cost", "cost")),
    view.note, chart.node, node);
  return view;
}

function drawAll(view, data, wanted) {
  const { total } = data.days;
  view.loading.remove();
  say(view.tiles.tasks, total.tasks);
  say(view.tiles.seconds, duration(total.seconds));
  unknown(view.tiles.in, total.input_tokens, total.tasks ? tokens : () => "–");
  unknown(view.tiles.out, total.output_tokens, total.tasks ? tokens : () => "–");
  unknown(view.tiles.cost, total.cost_usd, total.tasks ? dollars : () => "–");
  const lacks = untoldText(total);
  say(view.note,
    lacks ? `${lacks[0].toUpperCase()}${lacks.slice(1)}; the sums are without them.`
      : total.tasks ? "Every task told what it used."
      : "");
  drawChart(view, data, wanted);
  const rows = wanted.by === "day" ? [...data.rows.rows].reverse() : data.rows.rows;
  view.table.hidden = !rows.length;
  view.none.hidden = rows.length > 0;
  const shown = data.rows.left_off ? [...rows, { more: data.rows.left_off }] : rows;
  keyed(view.rows, shown, (one) => (one.more ? "more" : `${one[wanted.by]}`), (one) => row(one, wanted.by), update);
}

/** All days of the time that was asked for; those on which nothing ended are empty. */
function drawChart(view, data, wanted) {
  const known = new Map(data.days.rows.map((one) => [one.day, one]));
  const days = [];
  for (const day = new Date(data.since); day.getTime() <= now(); day.setDate(day.getDate() + 1)) {
    const name =
      `${day.getFullYear()}-${String(day.getMonth() + 1).padStart(2, "0")}-${String(day.getDate()).padStart(2, "0")}`;
    days.push({
      tasks: 0, cost_usd: null, ...known.get(name),
      short: day.toLocaleDateString(undefined, { day: "numeric", month: "short" }),
      long: day.toLocaleDateString(undefined, { weekday: "short", day: "numeric", month: "long" }),
    });
  }
  const { total } = data.days;
  const chosen = COUNTS.find(([name]) => name === wanted.of) ?? COUNTS.find(([, , of]) => of(total) != null);
  const [, label, of, text] = chosen;
  keyed(view.of, COUNTS, ([name]) => name,
    ([name, words]) =>
      h("button", { type: "button", onclick: () => { wanted.of = name; drawChart(view, data, wanted); } }, words),
    (node, [name]) => node.setAttribute("aria-pressed", String(name === chosen[0])));
  view.chart.show(days, of, (value, one) => (value == null && one && !one.tasks ? "nothing" : text(value)),
    `Bars: ${label} of each day; the table below has the figures`);
}

const linkOf = {
  agent: (name) => `/tasks?agent=${encodeURIComponent(name)}`,
  actor: (name) => `/tasks?creator=${encodeURIComponent(name)}`,
  session: (name) => `/sessions/${encodeURIComponent(name)}`,
};
const NAMELESS = { session: "in no conversation", model: "not told", actor: "nobody" };
const CELLS = 6;

const dayName = (name) =>
  new Date(`${name}T12:00`).toLocaleDateString(undefined, { weekday: "short", day: "numeric", month: "short" });

function row(one, by) {
  if (one.more) return h("tr", h("td.faint", { colSpan: CELLS + 1 }, `and ${one.more} more`));
  const name = one[by];
  const shown = by === "day" ? h("time", { dateTime: name }, dayName(name))
    : !name ? h("span.faint", NAMELESS[by] ?? "none")
    : linkOf[by] ? h("a.said", { href: linkOf[by](name) }, name)
    : h("span.said", name);
  const node = h("tr", h("td", shown), Array.from({ length: CELLS }, () => h("td.num")));
  return node;
}

function update(node, one) {
  if (one.more) return say(node.firstChild, `and ${one.more} more`);
  const [, tasks, failed, time, input, output, cost] = node.children;
  say(tasks, one.tasks);
  say(failed, one.failed || "");
  failed.classList.toggle("bad-text", one.failed > 0);
  say(time, duration(one.seconds));
  unknown(input, one.input_tokens, tokens);
  unknown(output, one.output_tokens, tokens);
  unknown(cost, one.cost_usd, dollars);
  node.title = untoldText(one);
  return undefined;
}

function unknown(cell, value, text) {
  say(cell, text(value));
  cell.classList.toggle("unknown", value == null);
}
