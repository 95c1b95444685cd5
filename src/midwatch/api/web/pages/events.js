// Events: the log as it grows. Filters live in the address; any place in the log can be jumped to.

import { get, query } from "../api.js";
import { go } from "../app.js";
import { h, say } from "../dom.js";
import { icon } from "../icons.js";
import { shortcut } from "../keys.js";
import { KINDS, kindText, line, tone } from "../model.js";
import { act, failure, pageHead, skeleton, taskLink } from "../parts.js";
import { stream } from "../stream.js";
import { dateTime, timeOfDay } from "../time.js";

const PAGE = 200;
const MOST_ROWS = 2000;
const FILTERS = [
  ["task_id", "Task"], ["turn_id", "Turn"], ["session_key", "Session"], ["agent", "Agent"], ["actor", "Actor"],
];

export default async function events(main, page) {
  page.setTitle("Events");
  main.className = "events-page";
  const wanted = {
    kind: page.search.getAll("kind"),
    ...Object.fromEntries(FILTERS.map(([name]) => [name, page.search.get(name) ?? ""])),
  };
  const at = Number(page.search.get("at")) || null;
  const data = { oldest: null, newest: 0, paused: Boolean(at), held: [], loaded: false };
  const rows = h("ol.log", { "aria-label": "Events" });
  const older = h("button.quiet", { type: "button", hidden: true }, "Load older");
  const pause = h("button", { type: "button", title: "Stop and go (p)" });
  const scroller = h("div.log-scroll",
    { tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log of events" }, skeleton(10),
    h("div.log-older", older), rows);
  let stuck = true;
  const showPause = () => {
    pause.setAttribute("aria-pressed", String(data.paused));
    pause.replaceChildren(icon(data.paused ? "play" : "pause"),
      h("span", data.paused ? (data.held.length ? `Go on (${data.held.length} new)` : "Go on") : "Pause"));
  };
  const add = (found) => {
    rows.querySelector(".log-none")?.remove();
    rows.append(...found.map((event) => row(event, at)));
    data.newest = Math.max(data.newest, ...found.map((event) => event.seq));
    while (rows.children.length > MOST_ROWS) rows.firstChild.remove();
    if (stuck && !at) scroller.scrollTop = scroller.scrollHeight;
  };
  pause.addEventListener("click", () => {
    if (at) return go(`/events${query(wanted)}`); // from the middle of the log back to its end
    data.paused = !data.paused;
    if (!data.paused) { stuck = true; add(data.held.splice(0)); }
    return showPause();
  });
  scroller.addEventListener("scroll", () => {
    stuck = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
  }, { passive: true });
  const take = (event) => {
    if (!matches(wanted, event) || event.seq <= data.newest) return;
    if (data.paused || !data.loaded) {
      if (data.held.length < MOST_ROWS) data.held.push(event);
      if (data.loaded) showPause();
    } else add([event]);
  };
  page.whenLeft(stream.on({ event: take, reset: () => go(location.pathname + location.search, { replace: true }) }));
  older.addEventListener("click", () => act(older, async () => {
    const { events: found } = await get(`/events${query({ ...wanted, before: data.oldest, limit: PAGE })}`);
    const height = scroller.scrollHeight;
    rows.prepend(...found.map((event) => row(event, at)));
    scroller.scrollTop += scroller.scrollHeight - height;
    data.oldest = found[0]?.seq ?? data.oldest;
    older.hidden = found.length < PAGE;
  }));
  page.whenLeft(shortcut("p", "Stop and go on", () => pause.click()));
  main.append(pageHead("Events", pause), filters(wanted, at), h("section.panel.log-panel", scroller));
  showPause();
  await load(page, wanted, at, { scroller, rows, older, add, data, showPause });
}

async function load(page, wanted, at, { scroller, rows, older, add, data, showPause }) {
  try {
    const { events: found } = await get(`/events${query(at
      ? { ...wanted, after: Math.max(0, at - 1 - PAGE / 4), limit: PAGE }
      : { ...wanted, before: 2 ** 53 - 1, limit: PAGE })}`);
    if (!page.isShown()) return;
    scroller.querySelector(".skeleton")?.remove();
    data.oldest = found[0]?.seq ?? null;
    older.hidden = found.length < PAGE && !(at && data.oldest > 1);
    add(found);
    data.loaded = true;
    const early = data.held.splice(0).filter((event) => event.seq > data.newest);
    if (data.paused) data.held.push(...early);
    else if (early.length) add(early);
    if (!rows.firstChild) rows.append(h("li.log-none.faint", "No events yet. They appear here as they happen."));
    if (at) rows.querySelector(".here, [data-near]")?.scrollIntoView({ block: "center" });
    showPause();
  } catch (problem) {
    if (page.isShown())
      scroller.replaceChildren(failure(problem, () => go(location.pathname + location.search, { replace: true })));
  }
}

function fits(wanted, kind) {
  return wanted.endsWith("*") ? kind.startsWith(wanted.slice(0, -1)) : kind === wanted;
}

function matches(wanted, event) {
  return (!wanted.kind.length || wanted.kind.some((kind) => fits(kind, event.kind))) &&
    (!wanted.turn_id || wanted.turn_id === event.turn_id) && (!wanted.task_id || wanted.task_id === event.task_id) &&
    (!wanted.session_key || wanted.session_key === event.session_key) &&
    (!wanted.agent || wanted.agent === event.agent_id) && (!wanted.actor || wanted.actor === event.actor);
}

function filters(wanted, at) {
  const change = (changes) => go(`/events${query({ ...wanted, ...changes })}`, { replace: true });
  const kind = h("select", { "aria-label": "Kind", "data-slash": "" },
    h("option", { value: "" }, "All kinds"),
    KINDS.map((name) => h("option", { value: name, selected: wanted.kind.includes(name) }, name)));
  kind.addEventListener("change", () => change({ kind: kind.value ? [kind.value] : [] }));
  const inputs = FILTERS.map(([name, label]) => {
    const node = h("input", { type: "search", placeholder: label, "aria-label": label, value: wanted[name] });
    node.addEventListener("change", () => change({ [name]: node.value.trim() }));
    return node;
  });
  const jump = h("input.num",
    { type: "number", min: 1, placeholder: "seq", "aria-label": "Jump to seq", value: at ?? "" });
  const form = h("form.jump", h("span.dim", "Jump to"), jump);
  form.addEventListener("submit", (sent) => {
    sent.preventDefault();
    go(`/events${query({ ...wanted, at: jump.value })}`, { replace: true });
  });
  jump.addEventListener("change", () => form.requestSubmit());
  return h("div.filters", { role: "search" }, kind, inputs, form);
}

function row(event, at) {
  const summary = h("summary.log-line",
    h("span.num.faint.log-seq", event.seq),
    h("span.num.faint.log-time", { title: dateTime(event.time) }, timeOfDay(event.time)),
    h("code.log-kind.cut", kindText(event.kind)), h("span.cut.log-text", line(event)),
    h("span.faint.cut.log-who", event.agent_id ?? event.actor ?? ""));
  const details = h("details", { data: { tone: tone(event) } }, summary);
  details.addEventListener("toggle", () => {
    if (details.childElementCount > 1) return;
    const { payload, ...envelope } = event;
    details.append(h("div.log-more",
      h("p", event.task_id ? taskLink(event.task_id, "Its task") : null, " ",
        event.session_key && !event.session_key.startsWith("bg:")
          ? h("a", { href: `/sessions/${encodeURIComponent(event.session_key)}` }, "Its session")
          : null),
      h("pre", say(h("code"), JSON.stringify({ ...envelope, payload }, null, 2)))));
  }, { once: true });
  const item = h("li", { class: event.seq === at ? "here" : "" }, details);
  if (event.seq === at) details.open = true;
  return item;
}
