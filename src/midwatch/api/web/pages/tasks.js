// Tasks, newest first. The address holds the filters.

import { buildQuery, get, getFilledPage, trackRequests } from "../api.js";
import { go, showLoadFailure } from "../app.js";
import { h, limitToFrame, renderRows, setText } from "../dom.js";
import { applyEvent, createTask } from "../model.js";
import {
  createAgo, createCommand, createElapsed, createEmpty, createPageHead, createSkeleton, createStatus, createTagFilter,
  formatPrompt, hasTags, runAction, updateElapsed, updateStatus,
} from "../parts.js";
import { stream } from "../stream.js";

const STATUSES = ["pending", "running", "done", "failed", "cancelled"];
const PAGE = 50;

export default async function renderTasks(main, page) {
  page.setTitle("Tasks");
  const filter = readFilter(page.search);
  const list = h("ol.rows.task-list", { "aria-label": "Tasks" });
  const fresh = h("button.quiet", { type: "button", hidden: true });
  const more = h("button", { type: "button", hidden: true }, "Load more");
  const body = h("section.panel", createSkeleton(8), list);
  main.append(
    createPageHead("Tasks", h("a.button.primary.action", { href: "/tasks/new", title: "New task (n)" }, "New task")),
    createFilters(filter), body, h("div.list-foot", more, fresh));
  const data = { tasks: new Map(), held: new Map(), next: null, early: [] };
  const rows = () => [...data.tasks.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
  const draw = limitToFrame(() => {
    if (!page.isCurrent() || !data.loaded) return;
    renderRows(list, rows(), (task) => task.id, createRow, updateRow);
    more.hidden = !data.next;
    fresh.hidden = !data.held.size;
    setText(fresh, `${data.held.size} new`);
    body.querySelector(".empty")?.remove();
    if (!data.tasks.size) body.append(createEmptyList(filter));
  });
  const startRequest = trackRequests();
  let loads = 0; // replies may not include events that happen while they load
  const load = async (before = null) => {
    const { accept } = startRequest();
    if (!loads++) data.early = [];
    const reply = await getFilledPage(page, "tasks", { ...filter, limit: PAGE }, before).finally(() => { loads -= 1; });
    if (!page.isCurrent() || !accept()) return;
    body.querySelector(".skeleton")?.remove();
    body.querySelector(".empty")?.remove();
    for (const task of reply.tasks) data.tasks.set(task.id, task);
    data.next = reply.next;
    data.loaded = true;
    for (const event of data.early) applyToList(data, filter, event, false);
    draw();
  };
  const release = () => {
    for (const [id, task] of data.held) data.tasks.set(id, task);
    data.held.clear();
    draw();
  };
  const addTagged = async (id) => { // an event does not tell the tags of its task
    if (!loads++) data.early = [];
    const task = await get(`/tasks/${id}`).catch(() => null).finally(() => { loads -= 1; });
    if (!task || !page.isCurrent() || data.tasks.has(id) || !matches(filter, task)) return;
    data.tasks.set(id, task);
    for (const event of data.early) applyToList(data, filter, event, false);
    draw();
  };
  let isPointerOver = false;
  list.addEventListener("pointerenter", (moved) => { isPointerOver = moved.pointerType === "mouse"; });
  list.addEventListener("pointerleave", () => { isPointerOver = false; release(); });
  fresh.addEventListener("click", release);
  more.addEventListener("click", () => runAction(more, () => load(data.next)));
  page.onLeave(stream.on({
    event: (event) => {
      if (loads) data.early.push(event);
      if (data.loaded && applyToList(data, filter, event, isPointerOver)) draw();
      else if (filter.tag.length && event.kind === "task_submitted") addTagged(event.task_id);
    },
    reset: () => { data.tasks.clear(); load().catch(() => {}); },
  }));
  await load().catch((problem) => showLoadFailure(page, body, problem));
}

/** Apply an event. Returns whether something changed. While the pointer is over the list, new rows are held back. */
function applyToList(data, filter, event, hold) {
  const known = data.tasks.get(event.task_id) ?? data.held.get(event.task_id);
  if (known) {
    const next = applyEvent(known, event);
    if (next === known) return false;
    (data.tasks.has(event.task_id) ? data.tasks : data.held).set(event.task_id, next);
    return true;
  }
  const task = event.kind === "task_submitted" ? createTask(event) : null;
  if (!task || !matches(filter, task)) return false;
  (hold ? data.held : data.tasks).set(task.id, task);
  return true;
}

function matches(filter, task) {
  return (!filter.status.length || filter.status.includes(task.status)) &&
    (!filter.agent || filter.agent === task.agent) &&
    (!filter.session_key || filter.session_key === task.session_key) &&
    (!filter.creator || filter.creator === task.creator) &&
    hasTags(task, filter.tag);
}

/** Read the filter from the address. */
function readFilter(search) {
  return {
    status: search.getAll("status"),
    agent: search.get("agent") ?? "",
    session_key: search.get("session_key") ?? search.get("session") ?? "",
    creator: search.get("creator") ?? "",
    tag: search.getAll("tag"),
  };
}

function createFilters(filter) {
  // from the address, because a quick user may change it twice before the page is drawn again
  const change = (changes) =>
    go(`/tasks${buildQuery({ ...readFilter(new URLSearchParams(location.search)), ...changes })}`, { replace: true });
  const isChosen = (name) => filter.status.includes(name);
  const segments = h("div.segments", { role: "group", "aria-label": "Status" },
    h("button",
      { type: "button", "aria-pressed": String(!filter.status.length), onclick: () => change({ status: [] }) }, "all"),
    STATUSES.map((name) => h("button", {
      type: "button", "aria-pressed": String(isChosen(name)),
      onclick: (clicked) => change({
        status: clicked.shiftKey
          ? (isChosen(name) ? filter.status.filter((status) => status !== name) : [...filter.status, name])
          : isChosen(name) && filter.status.length === 1 ? [] : [name],
      }),
    }, name)));
  const input = (name, label, extra = {}) => {
    const node = h("input", { type: "search", placeholder: label, "aria-label": label, value: filter[name], ...extra });
    node.addEventListener("change", () => change({ [name]: node.value.trim() }));
    return node;
  };
  const agent = input("agent", "Agent", { "data-slash": "" });
  const names = h("datalist", { id: "agent-names" });
  agent.setAttribute("list", "agent-names");
  agent.addEventListener("focus", async () => {
    const { agents } = await get("/agents").catch(() => ({ agents: [] }));
    names.replaceChildren(...agents.map((agent) => h("option", { value: agent.name })));
  }, { once: true });
  return h("div.filters", { role: "search" }, segments, agent, names, input("session_key", "Session"),
    input("creator", "Creator"), createTagFilter(filter.tag, (tag) => change({ tag })));
}

function createEmptyList(filter) {
  if (filter.status.length || filter.agent || filter.session_key || filter.creator || filter.tag.length) {
    return createEmpty("No matching tasks", "Clear the filters to see all tasks.",
      h("a.button", { href: "/tasks" }, "Clear filters"));
  }
  return createEmpty("No tasks yet",
    "A task is one prompt for one agent. It runs in the background and continues after a restart.",
    h("a.button.primary.action", { href: "/tasks/new" }, "New task"), createCommand('midwatch submit "Say hello"'));
}

function createRow(task) {
  const status = createStatus(task);
  const time = createElapsed(null);
  const at = createAgo(task.created_at);
  const title = h("span.truncate.row-title");
  const link = h("a.row.list-row", { href: `/tasks/${task.id}` }, status, title,
    h("span.tag", task.agent), h("span.truncate.faint.creator", task.creator ?? ""), time, at);
  link.parts = { status, time, title };
  return h("li", link);
}

function updateRow(node, task) {
  const { status, time, title } = node.firstChild.parts;
  setText(title, formatPrompt(task));
  updateStatus(status, task);
  updateElapsed(time, task);
}
