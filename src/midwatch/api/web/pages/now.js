// Now: what runs, what waits for me, what failed, what was done, and what it cost today.

import { asking, get } from "../api.js";
import { go } from "../app.js";
import { approvalList } from "../approval.js";
import { addressOf, attention } from "../attention.js";
import { desk } from "../desk.js";
import { firstLine, h, keyed, perFrame, placed, say } from "../dom.js";
import { dollars, tokens as short } from "../figures.js";
import { icon } from "../icons.js";
import { after, taskFrom, waitText } from "../model.js";
import {
  agoOf, attribute, command, elapsed, empty, failure, pageHead, panel, promptText, skeleton, statusMark, updateElapsed,
  updateStatus,
} from "../parts.js";
import { stream } from "../stream.js";
import { duration, midnight } from "../time.js";

const SHOWN = 20;

export default async function now(main, page) {
  page.setTitle("Now");
  main.className = "now-page";
  const view = build(main);
  const data = { failed: [], recent: [], usage: null, known: new Map() };
  const draw = perFrame(() => page.isShown() && drawAll(view, data));
  page.whenLeft(desk.on("tasks", draw));
  page.whenLeft(desk.on("counts", draw));
  page.whenLeft(desk.on("activity", draw));
  let questions = 0;
  const drawWaiting = () => {
    const count = questions + drawAttention(view.attention);
    say(view.waiting.counter, count || "");
    view.waiting.none.hidden = count > 0;
  };
  page.whenLeft(attention.on(drawWaiting));
  page.whenLeft(approvalList(view.waiting.list,
    { farewell: true, changed: (count) => { questions = count; drawWaiting(); } }));
  const ask = asking();
  const early = [];
  let loads = 0; // what happens during them may not be in their answers
  const take = (event) => {
    if (loads) early.push(event);
    if (!data.loaded) return;
    apply(data, event);
    draw();
  };
  const load = async () => {
    const { isNext } = ask();
    if (!loads++) early.length = 0;
    const found = await get(`/now?since=${encodeURIComponent(midnight())}`).finally(() => { loads -= 1; });
    if (!isNext()) return;
    Object.assign(data, { failed: found.failed, recent: found.recent, usage: found.usage });
    for (const task of found.running) {
      data.known.set(task.id, task);
      if (task.activity && !desk.activity.has(task.id))
        desk.activity.set(task.id, { ...task.activity, text: inWords(task.activity.text) });
    }
    for (const event of early) if (event.seq > found.as_of_seq) apply(data, event);
    data.loaded = true;
    draw();
  };
  page.whenLeft(stream.on({ event: take, reset: () => load().catch(() => {}) }));
  try {
    await load();
  } catch (problem) {
    if (!page.isShown()) return;
    for (const one of [view.failed, view.recent])
      one.body.replaceChildren(failure(problem, () => go("/", { replace: true })));
  }
}

function build(main) {
  const make = (title, name, more = {}) => {
    const list = h("ol.rows", { "aria-label": title });
    const none = h("div", more.none ?? []);
    const { node, body, counter } = panel(title, { name, count: true, actions: more.actions ?? [] });
    body.classList.add("scrolls");
    body.append(more.loading === false ? "" : skeleton(3), list, none);
    list.hidden = true;
    none.hidden = true;
    return { node, body, list, none, counter };
  };
  const view = {
    tiles: tiles(),
    running: make("Running", "now-running",
      { none: empty("Nothing runs", "Give an agent something to do; it goes on when you close this page.",
        h("a.button.primary.acts", { href: "/tasks/new" }, "New task"), command('midwatch submit "Say hello"')) }),
    waiting: make("Waiting for me", "now-waiting",
      {
        loading: false, actions: [h("a.more", { href: "/inbox" }, "inbox")],
        none: empty("Nobody asks", "When an agent asks before it acts, its question waits here for your answer.",
          command('midwatch submit "demo:ask clean up"')),
      }),
    failed: make("Failed", "now-failed",
      { none: empty("Nothing failed", "What fails in the last 24 hours and was not tried again is listed here.") }),
    recent: make("Recent results", "now-recent",
      { none: empty("No results yet", "The newest results are listed here, newest first."),
        actions: [h("a.more", { href: "/tasks?status=done" }, "all")] }),
  };
  view.waiting.list.className = "approvals";
  view.attention = h("ol.rows.attention", { "aria-label": "Needs attention" });
  view.waiting.list.after(view.attention);
  view.waiting.list.hidden = false;
  main.append(
    pageHead("Now", h("a.button.primary.acts", { href: "/tasks/new", title: "New task (n)" }, "New task")),
    view.tiles.node,
    h("div.now-grid", view.running.node, view.waiting.node, view.failed.node, view.recent.node));
  return view;
}

const TILES = [
  ["running", "running"], ["pending", "pending"], ["done", "done today"], ["failed", "failed today"],
  ["seconds", "work today"], ["tokens", "tokens today"], ["cost", "cost today"],
];

function tiles() {
  const values = {};
  const node = h("dl.tiles", TILES.map(([name, label]) => {
    values[name] = h("dd.num", "–");
    const spent = ["seconds", "tokens", "cost"].includes(name); // what it was spent on stands on its own page
    return h("div.tile", { data: { tile: name } }, h("dt", spent ? h("a", { href: "/usage" }, label) : label),
      values[name]);
  }));
  return { node, values };
}

function drawAll(view, data) {
  drawTiles(view.tiles.values, data);
  const running = [...desk.running.values()].sort((a, b) => ((a.started_at ?? "") < (b.started_at ?? "") ? -1 : 1));
  section(view.running, running, Boolean(desk.counts), runningRow, updateRunning);
  section(view.failed, newest(data.failed), data.loaded, endedRow, updateEnded);
  section(view.recent, newest(data.recent), data.loaded, endedRow, updateEnded);
}

/** What the watchdog found, and what rests for a reason nobody wished. Returns how many. */
function drawAttention(list) {
  const alerts = attention.alerts.map((one) => {
    const [title, ...rest] = one.text.split("\n");
    return {
      key: `alert ${one.subject} ${one.seq}`, id: one.subject, title, text: rest.join(" "), at: one.time, alert: true,
    };
  });
  const paused = [...attention.paused.values()].map((one) => ({
    key: `paused ${one.id} ${one.revision}`, id: one.id, title: `Paused: ${firstLine(one.name)}`, text: one.paused_why,
    at: one.updated_at,
  }));
  const all = [...alerts, ...paused];
  keyed(list, all, (one) => one.key, (one) => h("li",
    h("a.row.attention-row", { href: addressOf(one.id) }, h("span.warn-text", icon("alert")),
      h("span.cut.row-title", one.title), agoOf(one.at), h("span.row-sub.cut", { title: one.text }, one.text)),
    one.alert ? dismissal(one) : null));
  list.hidden = !all.length;
  return all.length;
}

function dismissal(one) {
  const button = h("button.icon-button.dismiss", { type: "button", title: "I have seen it" }, icon("cross", 14));
  button.setAttribute("aria-label", `Dismiss: ${one.title}`);
  button.addEventListener("click", () => attention.dismiss(one.id));
  return button;
}

const newest = (tasks) => [...tasks].sort((a, b) => (a.completed_at < b.completed_at ? 1 : -1));

function section(part, items, loaded, make, update) {
  if (!loaded) return;
  part.body.querySelector(".skeleton")?.remove();
  part.list.hidden = !items.length;
  part.none.hidden = items.length > 0;
  say(part.counter, items.length || "");
  placed(part.list, items, (task) => task.id, make, update);
}

function drawTiles(values, { usage }) {
  const total = usage?.total ?? usage ?? {};
  say(values.running, desk.counts?.running ?? "–");
  say(values.pending, desk.counts?.pending ?? "–");
  say(values.done, total.done ?? "–");
  say(values.failed, total.failed ?? "–");
  values.failed.classList.toggle("bad-text", total.failed > 0);
  say(values.seconds, total.seconds == null ? "–" : duration(total.seconds));
  const tokens = total.input_tokens == null && total.output_tokens == null
    ? null
    : (total.input_tokens ?? 0) + (total.output_tokens ?? 0);
  say(values.tokens, tokens === null ? "–" : short(tokens));
  say(values.cost, total.cost_usd == null ? "–" : dollars(total.cost_usd));
}

function runningRow(task) {
  const status = statusMark(task);
  const time = elapsed(task.started_at);
  const at = agoOf(null);
  const text = h("span.cut");
  const title = h("span.cut.row-title");
  const row = h("a.row.task-row", { href: `/tasks/${task.id}` }, status, title, h("span.tag", task.agent), time,
    h("span.row-sub.two-ends", text, at));
  row.parts = { status, time, at, text, title };
  return h("li", row);
}

function updateRunning(node, task) {
  const { status, time, at, text, title } = node.firstChild.parts;
  const activity = desk.activity.get(task.id);
  say(title, promptText(task));
  updateStatus(status, task);
  updateElapsed(time, task);
  attribute(at, "at", activity?.at ?? task.started_at);
  say(text, waitText(task) ?? activity?.text ?? "started");
}

function endedRow(task) {
  const at = agoOf(task.completed_at);
  const text = h("span.cut", { class: task.status === "failed" ? "bad-text" : "" });
  const row = h("a.row.task-row", { href: `/tasks/${task.id}` }, statusMark(task),
    h("span.cut.row-title", promptText(task)),
    h("span.tag", task.agent), elapsed(task.started_at, task.completed_at), h("span.row-sub.two-ends", text, at));
  row.parts = { text };
  return h("li", row);
}

function updateEnded(node, task) {
  const told = firstLine(task.status === "failed" ? (task.error ?? task.outcome) : task.result, 300);
  // Markdown begins its lines with signs
  say(node.firstChild.parts.text, told.replace(/^[#>*\s-]+(?=\S)/, "") || "no text");
}

/** The server names the kind of the last event and what it was about; live events are said by `line`. */
const inWords = (text) => text.replace(/^(task progress|approval requested) /, "")
  .replace(/^tool exec start /, "uses ")
  .replace(/^tool exec end (.*)/, "$1 returned");

/** What an event changes on this page. */
function apply(data, event) {
  if (event.kind === "task_submitted") {
    data.known.set(event.task_id, taskFrom(event));
    if (event.payload.retry_of) data.failed = data.failed.filter((task) => task.id !== event.payload.retry_of);
  }
  if (event.kind === "task_started") {
    const task = data.known.get(event.task_id) ?? desk.running.get(event.task_id) ?? taskFrom(event);
    data.known.set(event.task_id, after(task, event));
  }
  if (event.kind === "turn_start") {
    const task = data.known.get(event.task_id);
    if (task && !task.prompt) task.prompt = event.payload.user_message;
  }
  if (event.kind !== "task_finished") return;
  const task = after(data.known.get(event.task_id) ?? taskFrom(event), event);
  data.known.delete(event.task_id);
  count(data, task);
  const list = task.status === "failed" ? "failed" : task.status === "done" ? "recent" : null;
  if (list) data[list] = [task, ...data[list].filter((one) => one.id !== task.id)].slice(0, SHOWN);
}

function count(data, task) {
  const total = data.usage?.total ?? data.usage;
  if (!total) return;
  total.tasks = (total.tasks ?? 0) + 1;
  total[task.status] = (total[task.status] ?? 0) + 1;
  if (task.started_at)
    total.seconds = (total.seconds ?? 0) + (Date.parse(task.completed_at) - Date.parse(task.started_at)) / 1000;
  for (const name of ["input_tokens", "output_tokens", "cost_usd"]) {
    if (task.usage?.[name] != null) total[name] = (total[name] ?? 0) + task.usage[name];
  }
}
