// Now: running tasks, open questions, failures, recent results, and today's usage.

import { get, trackRequests } from "../api.js";
import { reloadPage } from "../app.js";
import { renderApprovals } from "../approval.js";
import { attention, getAddress } from "../attention.js";
import { desk } from "../desk.js";
import { getFirstLine, h, limitToFrame, renderKeyed, renderRows, setText } from "../dom.js";
import { formatDollars, formatTokens, sumTokens } from "../figures.js";
import { icon } from "../icons.js";
import { applyEvent, createTask, formatWait } from "../model.js";
import {
  createAgo, createCommand, createElapsed, createEmpty, createFailure, createPageHead, createPanel, createSkeleton,
  createStatus, formatPrompt, runAction, setAttribute, updateElapsed, updateStatus,
} from "../parts.js";
import { stream } from "../stream.js";
import { formatDuration, getMidnight } from "../time.js";
import { formatPause } from "../automation-parts.js";

const SHOWN = 20;

export default async function renderNow(main, page) {
  page.setTitle("Now");
  main.className = "now-page";
  const view = buildPage(main);
  const data = { failed: [], recent: [], usage: null, known: new Map() };
  const draw = limitToFrame(() => page.isCurrent() && drawAll(view, data));
  page.onLeave(desk.on("tasks", draw));
  page.onLeave(desk.on("counts", draw));
  page.onLeave(desk.on("activity", draw));
  let questions = 0;
  const drawWaiting = () => {
    const count = questions + drawAttention(view.attention);
    setText(view.waiting.counter, count || "");
    view.waiting.none.hidden = count > 0;
  };
  page.onLeave(attention.on(drawWaiting));
  page.onLeave(renderApprovals(view.waiting.list,
    { showAnswer: true, onChange: (count) => { questions = count; drawWaiting(); } }));
  const startRequest = trackRequests();
  const early = [];
  let loads = 0; // replies may not include events that happen while they load
  const handleEvent = (event) => {
    if (loads) early.push(event);
    if (!data.loaded) return;
    applyToPage(data, event);
    draw();
  };
  const load = async () => {
    const { accept } = startRequest();
    if (!loads++) early.length = 0;
    const reply = await get(`/now?since=${encodeURIComponent(getMidnight())}`).finally(() => { loads -= 1; });
    if (!accept()) return;
    Object.assign(data, { failed: reply.failed, recent: reply.recent, usage: reply.usage });
    for (const task of reply.running) {
      data.known.set(task.id, task);
      if (task.activity && !desk.activity.has(task.id))
        desk.activity.set(task.id, { ...task.activity, text: describeActivity(task.activity.text) });
    }
    for (const event of early) if (event.seq > reply.as_of_seq) applyToPage(data, event);
    data.loaded = true;
    draw();
  };
  page.onLeave(stream.on({ event: handleEvent, reset: () => load().catch(() => {}) }));
  try {
    await load();
  } catch (problem) {
    if (!page.isCurrent()) return;
    for (const section of [view.failed, view.recent])
      section.body.replaceChildren(createFailure(problem, reloadPage));
  }
}

function buildPage(main) {
  const createSection = (title, name, more = {}) => {
    const list = h("ol.rows", { "aria-label": title });
    const none = h("div", more.none ?? []);
    const { node, body, counter } = createPanel(title, { name, count: true, actions: more.actions ?? [] });
    body.classList.add("scrolls");
    body.append(more.loading === false ? "" : createSkeleton(3), list, none);
    list.hidden = true;
    none.hidden = true;
    return { node, body, list, none, counter };
  };
  const view = {
    tiles: createTiles(),
    running: createSection("Running", "now-running",
      { none: createEmpty("Nothing is running", "Give an agent a task. It continues when you close this page.",
        h("a.button.primary.action", { href: "/tasks/new" }, "New task"),
        createCommand('midwatch submit "Say hello"')) }),
    waiting: createSection("Waiting for you", "now-waiting",
      {
        loading: false, actions: [h("a.more", { href: "/inbox" }, "inbox")],
        none: createEmpty("Nothing is waiting for you",
          "When an agent asks a question, it is shown here until you answer it.",
          createCommand('midwatch submit "demo:ask clean up"')),
      }),
    failed: createSection("Failed", "now-failed",
      { none: createEmpty("No failures",
        "Tasks that failed in the last 24 hours and were not retried are listed here.") }),
    recent: createSection("Recent results", "now-recent",
      { none: createEmpty("No results yet", "Results are listed here, newest first."),
        actions: [h("a.more", { href: "/tasks?status=done" }, "all")] }),
  };
  view.waiting.list.className = "approvals";
  view.attention = h("ol.rows.attention", { "aria-label": "Needs attention" });
  view.waiting.list.after(view.attention);
  view.waiting.list.hidden = false;
  main.append(
    createPageHead("Now", h("a.button.primary.action", { href: "/tasks/new", title: "New task (n)" }, "New task")),
    view.tiles.node,
    h("div.now-grid", view.running.node, view.waiting.node, view.failed.node, view.recent.node));
  return view;
}

const TILES = [
  ["running", "running"], ["pending", "pending"], ["done", "done today"], ["failed", "failed today"],
  ["seconds", "work time today"], ["tokens", "tokens today"], ["cost", "cost today"],
];

function createTiles() {
  const values = {};
  const node = h("dl.tiles", TILES.map(([name, label]) => {
    values[name] = h("dd.num", "–");
    const spent = ["seconds", "tokens", "cost"].includes(name); // the usage page has the details
    return h("div.tile", { data: { tile: name } }, h("dt", spent ? h("a", { href: "/usage" }, label) : label),
      values[name]);
  }));
  return { node, values };
}

function drawAll(view, data) {
  drawTiles(view.tiles.values, data);
  const running = [...desk.running.values()].sort((a, b) => ((a.started_at ?? "") < (b.started_at ?? "") ? -1 : 1));
  drawSection(view.running, running, Boolean(desk.counts), createRunningRow, updateRunning);
  drawSection(view.failed, sortNewest(data.failed), data.loaded, createEndedRow, updateEnded);
  drawSection(view.recent, sortNewest(data.recent), data.loaded, createEndedRow, updateEnded);
}

/** Show alerts of the watchdog and what paused unexpectedly. Returns how many there are. */
function drawAttention(list) {
  const alerts = attention.alerts.map((alert) => {
    const [title, ...rest] = alert.text.split("\n");
    return {
      key: `alert ${alert.id} ${alert.subject} ${alert.alert} ${alert.status}`, id: alert.id, title,
      text: rest.join(" "), at: alert.since, href: getAddress(alert.subject, alert.task_id), alert: true,
    };
  });
  const known = new Set(attention.alerts.map((alert) => alert.subject));
  const paused = [...attention.paused.values()].filter((item) => !known.has(item.id)).map((item) => ({
    key: `paused ${item.id} ${item.revision}`, id: item.id, title: `Paused: ${getFirstLine(item.name)}`,
    text: formatPause(item).replace(/^Paused: /, ""), href: getAddress(item.id),
    at: item.updated_at,
  }));
  const all = [...alerts, ...paused];
  renderKeyed(list, all, (item) => item.key, (item) => h("li",
    h("a.row.attention-row", { href: item.href }, h("span.warn-text", icon("alert")),
      h("span.truncate.row-title", item.title), createAgo(item.at),
      h("span.row-sub.truncate", { title: item.text }, item.text)),
    item.alert && item.id ? createAcknowledgeButton(item) : null));
  list.hidden = !all.length;
  return all.length;
}

function createAcknowledgeButton(item) {
  const button = h("button.icon-button.dismiss", { type: "button", title: "Acknowledge" }, icon("cross", 14));
  button.setAttribute("aria-label", `Acknowledge: ${item.title}`);
  button.addEventListener("click", () => runAction(button, () => attention.acknowledge(item.id)));
  return button;
}

const sortNewest = (tasks) => [...tasks].sort((a, b) => (a.completed_at < b.completed_at ? 1 : -1));

function drawSection(part, items, loaded, createSection, update) {
  if (!loaded) return;
  part.body.querySelector(".skeleton")?.remove();
  part.list.hidden = !items.length;
  part.none.hidden = items.length > 0;
  setText(part.counter, items.length || "");
  renderRows(part.list, items, (task) => task.id, createSection, update);
}

function drawTiles(values, { usage }) {
  const total = usage?.total ?? usage ?? {};
  setText(values.running, desk.counts?.running ?? "–");
  setText(values.pending, desk.counts?.pending ?? "–");
  setText(values.done, total.done ?? "–");
  setText(values.failed, total.failed ?? "–");
  values.failed.classList.toggle("bad-text", total.failed > 0);
  setText(values.seconds, total.seconds == null ? "–" : formatDuration(total.seconds));
  const tokens = sumTokens(total);
  setText(values.tokens, tokens === null ? "–" : formatTokens(tokens));
  setText(values.cost, total.cost_usd == null ? "–" : formatDollars(total.cost_usd));
}

function createRunningRow(task) {
  const status = createStatus(task);
  const time = createElapsed(task.started_at);
  const at = createAgo(null);
  const text = h("span.truncate");
  const title = h("span.truncate.row-title");
  const row = h("a.row.task-row", { href: `/tasks/${task.id}` }, status, title, h("span.tag", task.agent), time,
    h("span.row-sub.two-ends", text, at));
  row.parts = { status, time, at, text, title };
  return h("li", row);
}

function updateRunning(node, task) {
  const { status, time, at, text, title } = node.firstChild.parts;
  const activity = desk.activity.get(task.id);
  setText(title, formatPrompt(task));
  updateStatus(status, task);
  updateElapsed(time, task);
  setAttribute(at, "at", activity?.at ?? task.started_at);
  setText(text, formatWait(task) ?? activity?.text ?? "Started");
}

function createEndedRow(task) {
  const at = createAgo(task.completed_at);
  const text = h("span.truncate", { class: task.status === "failed" ? "bad-text" : "" });
  const row = h("a.row.task-row", { href: `/tasks/${task.id}` }, createStatus(task),
    h("span.truncate.row-title", formatPrompt(task)),
    h("span.tag", task.agent), createElapsed(task.started_at, task.completed_at), h("span.row-sub.two-ends", text, at));
  row.parts = { text };
  return h("li", row);
}

function updateEnded(node, task) {
  const text = getFirstLine(task.status === "failed" ? (task.error ?? task.outcome) : task.result, 300);
  // without the signs with which Markdown starts a line
  setText(node.firstChild.parts.text, text.replace(/^[#>*\s-]+(?=\S)/, "") || "no text");
}

/** Describe the last activity as `formatEvent` does; the server sends the kind of the last event and its subject. */
const describeActivity = (text) => text.replace(/^(task progress|approval requested) /, "")
  .replace(/^status change /, "Status: ")
  .replace(/^tool exec start /, "Using ")
  .replace(/^tool exec end (.*)/, "$1 returned");

/** Apply an event to the data of this page. */
function applyToPage(data, event) {
  if (event.kind === "task_submitted") {
    data.known.set(event.task_id, createTask(event));
    if (event.payload.retry_of) data.failed = data.failed.filter((task) => task.id !== event.payload.retry_of);
  }
  if (event.kind === "task_started") {
    const task = data.known.get(event.task_id) ?? desk.running.get(event.task_id) ?? createTask(event);
    data.known.set(event.task_id, applyEvent(task, event));
  }
  if (event.kind === "turn_start") {
    const task = data.known.get(event.task_id);
    if (task && !task.prompt) task.prompt = event.payload.user_message;
  }
  if (event.kind !== "task_finished") return;
  const task = applyEvent(data.known.get(event.task_id) ?? createTask(event), event);
  data.known.delete(event.task_id);
  countTask(data, task);
  const list = task.status === "failed" ? "failed" : task.status === "done" ? "recent" : null;
  if (list) data[list] = [task, ...data[list].filter((item) => item.id !== task.id)].slice(0, SHOWN);
}

function countTask(data, task) {
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
