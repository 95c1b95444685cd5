// Events: the live log. The address holds the filters and the event to jump to.

import { buildQuery, get } from "../api.js";
import { go, showLoadFailure } from "../app.js";
import { h, isScrolledToEnd, setText } from "../dom.js";
import { icon } from "../icons.js";
import { addShortcut } from "../keys.js";
import { formatEvent, formatKind, getTone, KINDS } from "../model.js";
import { createPageHead, createSkeleton, createTaskLink, runAction } from "../parts.js";
import { stream } from "../stream.js";
import { formatDateTime, formatTime } from "../time.js";

const PAGE = 200;
const MOST_ROWS = 2000;
const MOST_PAGES = 10; // of a rare filter, each of which looks at thousands of events
const FILTERS = [
  ["task_id", "Task"], ["turn_id", "Turn"], ["session_key", "Session"], ["agent", "Agent"], ["actor", "Actor"],
];

export default async function renderEvents(main, page) {
  page.setTitle("Events");
  main.className = "events-page";
  const filter = {
    kind: page.search.getAll("kind"),
    ...Object.fromEntries(FILTERS.map(([name]) => [name, page.search.get(name) ?? ""])),
  };
  const at = Number(page.search.get("at")) || null;
  const data = { oldest: null, newest: 0, paused: Boolean(at), held: [], loaded: false };
  const rows = h("ol.log", { "aria-label": "Events" });
  const older = h("button.quiet", { type: "button", hidden: true }, "Load older");
  const pause = h("button", { type: "button", title: "Pause or resume (p)" });
  const scroller = h("div.log-scroll",
    { tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log of events" }, createSkeleton(10),
    h("div.log-older", older), rows);
  let isAtEnd = true;
  const drawPause = () => {
    pause.setAttribute("aria-pressed", String(data.paused));
    pause.replaceChildren(icon(data.paused ? "play" : "pause"),
      h("span", data.paused ? (data.held.length ? `Resume (${data.held.length} new)` : "Resume") : "Pause"));
  };
  const addRows = (newEvents) => {
    rows.querySelector(".log-none")?.remove();
    rows.append(...newEvents.map((event) => createRow(event, at)));
    data.newest = Math.max(data.newest, ...newEvents.map((event) => event.seq));
    while (rows.children.length > MOST_ROWS) rows.firstChild.remove();
    if (isAtEnd && !at) scroller.scrollTop = scroller.scrollHeight;
  };
  pause.addEventListener("click", () => {
    if (at) return go(`/events${buildQuery(filter)}`); // return from the middle of the log to its end
    data.paused = !data.paused;
    if (!data.paused) { isAtEnd = true; addRows(data.held.splice(0)); }
    return drawPause();
  });
  scroller.addEventListener("scroll", () => {
    isAtEnd = isScrolledToEnd(scroller);
  }, { passive: true });
  const handleEvent = (event) => {
    if (!matches(filter, event) || event.seq <= data.newest) return;
    if (data.paused || !data.loaded) {
      if (data.held.length < MOST_ROWS) data.held.push(event);
      if (data.loaded) drawPause();
    } else addRows([event]);
  };
  page.onLeave(stream.on({ event: handleEvent,
    reset: () => go(location.pathname + location.search, { replace: true }) }));
  older.addEventListener("click", () => runAction(older, async () => {
    const { events, next } = await readBack(page, filter, data.oldest);
    const height = scroller.scrollHeight;
    if (events.length) rows.querySelector(".log-none")?.remove();
    rows.prepend(...events.map((event) => createRow(event, at)));
    scroller.scrollTop += scroller.scrollHeight - height;
    data.oldest = next ?? data.oldest;
    older.hidden = next === null;
    showNone(rows, filter, next);
  }));
  page.onLeave(addShortcut("p", "Pause or resume the log", () => pause.click()));
  main.append(createPageHead("Events", pause), createFilters(filter, at), h("section.panel.log-panel", scroller));
  drawPause();
  await load(page, filter, at, { scroller, rows, older, addRows, data, drawPause });
}

/**
 * Read the last matching events before a seq. A page of a rare filter may be empty although there are earlier events:
 * then read on, up to a number of pages.
 */
async function readBack(page, filter, before) {
  const found = [];
  let next = before;
  for (let pages = 0; pages < MOST_PAGES && next !== null && found.length < PAGE && page.isCurrent(); pages += 1) {
    const reply = await get(`/events${buildQuery({ ...filter, before: next, limit: PAGE - found.length })}`);
    found.unshift(...reply.events);
    next = reply.next;
  }
  return { events: found, next };
}

async function load(page, pattern, at, { scroller, rows, older, addRows, data, drawPause }) {
  try {
    const { events, next } = at
      ? await get(`/events${buildQuery({ ...pattern, after: Math.max(0, at - 1 - PAGE / 4), limit: PAGE })}`)
      : await readBack(page, pattern, 2 ** 53 - 1);
    if (!page.isCurrent()) return;
    scroller.querySelector(".skeleton")?.remove();
    data.oldest = at ? (events[0]?.seq ?? at) : next;
    older.hidden = at ? data.oldest <= 1 : next === null;
    addRows(events);
    data.loaded = true;
    const early = data.held.splice(0).filter((event) => event.seq > data.newest);
    if (data.paused) data.held.push(...early);
    else if (early.length) addRows(early);
    showNone(rows, pattern, at ? null : next);
    if (at) rows.querySelector(".here, [data-near]")?.scrollIntoView({ block: "center" });
    drawPause();
  } catch (problem) {
    showLoadFailure(page, scroller, problem);
  }
}

/** Tell that the log has no row, and how far it was searched: `next` is null if it was searched to its beginning. */
function showNone(rows, filter, next) {
  if (rows.querySelector("li:not(.log-none)")) return;
  const filtered = Object.values(filter).some((value) => value.length);
  const text = next !== null ? `No matching events since event ${next}. “Load older” searches further back.`
    : filtered ? "No matching events. New events appear here." : "No events yet. New events appear here.";
  rows.replaceChildren(h("li.log-none.faint", text));
}

function matchesKind(filter, kind) {
  return filter.endsWith("*") ? kind.startsWith(filter.slice(0, -1)) : kind === filter;
}

function matches(filter, event) {
  return (!filter.kind.length || filter.kind.some((kind) => matchesKind(kind, event.kind))) &&
    (!filter.turn_id || filter.turn_id === event.turn_id) && (!filter.task_id || filter.task_id === event.task_id) &&
    (!filter.session_key || filter.session_key === event.session_key) &&
    (!filter.agent || filter.agent === event.agent_id) && (!filter.actor || filter.actor === event.actor);
}

function createFilters(filter, at) {
  const change = (changes) => go(`/events${buildQuery({ ...filter, ...changes })}`, { replace: true });
  const kind = h("select", { "aria-label": "Kind", "data-slash": "" },
    h("option", { value: "" }, "All kinds"),
    KINDS.map((name) => h("option", { value: name, selected: filter.kind.includes(name) }, name)));
  kind.addEventListener("change", () => change({ kind: kind.value ? [kind.value] : [] }));
  const inputs = FILTERS.map(([name, label]) => {
    const node = h("input", { type: "search", placeholder: label, "aria-label": label, value: filter[name] });
    node.addEventListener("change", () => change({ [name]: node.value.trim() }));
    return node;
  });
  const jump = h("input.num",
    { type: "number", min: 1, placeholder: "seq", "aria-label": "Jump to seq", value: at ?? "" });
  const form = h("form.jump", h("span.dim", "Jump to"), jump);
  form.addEventListener("submit", (sent) => {
    sent.preventDefault();
    go(`/events${buildQuery({ ...filter, at: jump.value })}`, { replace: true });
  });
  jump.addEventListener("change", () => form.requestSubmit());
  return h("div.filters", { role: "search" }, kind, inputs, form);
}

function createRow(event, at) {
  const summary = h("summary.log-line",
    h("span.num.faint.log-seq", event.seq),
    h("span.num.faint.log-time", { title: formatDateTime(event.time) }, formatTime(event.time)),
    h("code.log-kind.truncate", formatKind(event.kind)), h("span.truncate.log-text", formatEvent(event)),
    h("span.faint.truncate.log-who", event.agent_id ?? event.actor ?? ""));
  const details = h("details", { data: { tone: getTone(event) } }, summary);
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    const { payload, ...envelope } = event;
    details.append(h("div.log-more",
      h("p", event.task_id ? createTaskLink(event.task_id, "View task") : null, " ",
        event.session_key && !event.session_key.startsWith("bg:")
          ? h("a", { href: `/sessions/${encodeURIComponent(event.session_key)}` }, "View session")
          : null),
      h("pre", setText(h("code"), JSON.stringify({ ...envelope, payload }, null, 2)))));
  }, { once: true });
  const item = h("li", { class: event.seq === at ? "here" : "" }, details);
  if (event.seq === at) details.open = true;
  return item;
}
