// Tasks: all of them, newest first, with filters that live in the address.

import { asking, get, query } from "../api.js";
import { go } from "../app.js";
import { h, perFrame, placed, say } from "../dom.js";
import { after, taskFrom } from "../model.js";
import {
  act, agoOf, attribute, command, elapsed, empty, failure, pageHead, promptText, skeleton, statusMark, updateElapsed,
  updateStatus,
} from "../parts.js";
import { stream } from "../stream.js";

const STATUSES = ["pending", "running", "done", "failed", "cancelled"];
const PAGE = 50;

export default async function tasks(main, page) {
  page.setTitle("Tasks");
  const wanted = filterOf(page.search);
  const list = h("ol.rows.task-list", { "aria-label": "Tasks" });
  const fresh = h("button.quiet", { type: "button", hidden: true });
  const more = h("button", { type: "button", hidden: true }, "Load more");
  const body = h("section.panel", skeleton(8), list);
  main.append(
    pageHead("Tasks", h("a.button.primary.acts", { href: "/tasks/new", title: "New task (n)" }, "New task")),
    filters(wanted), body, h("div.list-foot", more, fresh));
  const data = { tasks: new Map(), held: new Map(), next: null, early: [] };
  const rows = () => [...data.tasks.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
  const draw = perFrame(() => {
    if (!page.isShown() || !data.loaded) return;
    placed(list, rows(), (task) => task.id, row, update);
    more.hidden = !data.next;
    fresh.hidden = !data.held.size;
    say(fresh, `${data.held.size} new`);
    body.querySelector(".empty")?.remove();
    if (!data.tasks.size) body.append(nothing(wanted));
  });
  const ask = asking();
  let loads = 0; // what happens during them may not be in their answers
  const load = async (before = null) => {
    const { isNext } = ask();
    if (!loads++) data.early = [];
    const found = await get(`/tasks${query({ ...wanted, before, limit: PAGE })}`).finally(() => { loads -= 1; });
    if (!page.isShown() || !isNext()) return;
    body.querySelector(".skeleton")?.remove();
    body.querySelector(".empty")?.remove();
    for (const task of found.tasks) data.tasks.set(task.id, task);
    data.next = found.next;
    data.loaded = true;
    for (const event of data.early) take(data, wanted, event, false);
    draw();
  };
  const release = () => {
    for (const [id, task] of data.held) data.tasks.set(id, task);
    data.held.clear();
    draw();
  };
  let over = false;
  list.addEventListener("pointerenter", (moved) => { over = moved.pointerType === "mouse"; });
  list.addEventListener("pointerleave", () => { over = false; release(); });
  fresh.addEventListener("click", release);
  more.addEventListener("click", () => act(more, () => load(data.next)));
  page.whenLeft(stream.on({
    event: (event) => {
      if (loads) data.early.push(event);
      if (data.loaded && take(data, wanted, event, over)) draw();
    },
    reset: () => { data.tasks.clear(); load().catch(() => {}); },
  }));
  try {
    await load();
  } catch (problem) {
    if (page.isShown())
      body.replaceChildren(failure(problem, () => go(location.pathname + location.search, { replace: true })));
  }
}

/** Take in an event; returns whether something changed. While the pointer is over the list new rows wait. */
function take(data, wanted, event, hold) {
  const known = data.tasks.get(event.task_id) ?? data.held.get(event.task_id);
  if (known) {
    const next = after(known, event);
    if (next === known) return false;
    (data.tasks.has(event.task_id) ? data.tasks : data.held).set(event.task_id, next);
    return true;
  }
  const task = event.kind === "task_submitted" ? taskFrom(event) : null;
  if (!task || !matches(wanted, task)) return false;
  (hold ? data.held : data.tasks).set(task.id, task);
  return true;
}

function matches(wanted, task) {
  return (!wanted.status.length || wanted.status.includes(task.status)) &&
    (!wanted.agent || wanted.agent === task.agent) &&
    (!wanted.session_key || wanted.session_key === task.session_key) &&
    (!wanted.creator || wanted.creator === task.creator);
}

/** What an address asks for. */
function filterOf(search) {
  return {
    status: search.getAll("status"),
    agent: search.get("agent") ?? "",
    session_key: search.get("session_key") ?? search.get("session") ?? "",
    creator: search.get("creator") ?? "",
  };
}

function filters(wanted) {
  // from the address, not from what this page was drawn with: a quick hand changes twice before it is drawn again
  const change = (changes) =>
    go(`/tasks${query({ ...filterOf(new URLSearchParams(location.search)), ...changes })}`, { replace: true });
  const chosen = (name) => wanted.status.includes(name);
  const segments = h("div.segments", { role: "group", "aria-label": "Status" },
    h("button",
      { type: "button", "aria-pressed": String(!wanted.status.length), onclick: () => change({ status: [] }) }, "all"),
    STATUSES.map((name) => h("button", {
      type: "button", "aria-pressed": String(chosen(name)),
      onclick: (clicked) => change({
        status: clicked.shiftKey
          ? (chosen(name) ? wanted.status.filter((one) => one !== name) : [...wanted.status, name])
          : chosen(name) && wanted.status.length === 1 ? [] : [name],
      }),
    }, name)));
  const input = (name, label, extra = {}) => {
    const node = h("input", { type: "search", placeholder: label, "aria-label": label, value: wanted[name], ...extra });
    node.addEventListener("change", () => change({ [name]: node.value.trim() }));
    return node;
  };
  const agent = input("agent", "Agent", { "data-slash": "" });
  const names = h("datalist", { id: "agent-names" });
  agent.setAttribute("list", "agent-names");
  agent.addEventListener("focus", async () => {
    const { agents } = await get("/agents").catch(() => ({ agents: [] }));
    names.replaceChildren(...agents.map((one) => h("option", { value: one.name })));
  }, { once: true });
  return h("div.filters", { role: "search" }, segments, agent, names, input("session_key", "Session"),
    input("creator", "Creator"));
}

function nothing(wanted) {
  if (wanted.status.length || wanted.agent || wanted.session_key || wanted.creator) {
    return empty("No task is like that", "Loosen the filters to see more.",
      h("a.button", { href: "/tasks" }, "Show all"));
  }
  return empty("No tasks yet", "A task is one prompt for one agent. It runs in the background and survives restarts.",
    h("a.button.primary.acts", { href: "/tasks/new" }, "New task"), command('midwatch submit "Say hello"'));
}

function row(task) {
  const status = statusMark(task);
  const time = elapsed(null);
  const at = agoOf(task.created_at);
  const title = h("span.cut.row-title");
  const link = h("a.row.list-row", { href: `/tasks/${task.id}` }, status, title,
    h("span.tag", task.agent), h("span.cut.faint.creator", task.creator ?? ""), time, at);
  link.parts = { status, time, title };
  return h("li", link);
}

function update(node, task) {
  const { status, time, title } = node.firstChild.parts;
  say(title, promptText(task));
  updateStatus(status, task);
  if (task.status === "pending") {
    attribute(time, "from", null);
    attribute(time, "to", null);
  } else updateElapsed(time, task);
}
