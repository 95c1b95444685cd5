// Sessions: conversations with agents, most recently used first, and the form for a new one.

import { buildQuery, get, post, trackRequests } from "../api.js";
import { createNavigator, showLoadFailure } from "../app.js";
import { desk } from "../desk.js";
import { h, limitToFrame, renderRows, setText } from "../dom.js";
import { icon } from "../icons.js";
import { createAgentPicker, createDirectoryPicker } from "../picker.js";
import {
  createAgo, createCommand, createEmpty, createField, createPageHead, createSkeleton, handleSubmit, pickFilled,
  runAction, setAttribute,
} from "../parts.js";
import { followEvents } from "../automation-parts.js";

const PAGE = 50;

export default async function renderSessions(main, page) {
  page.setTitle("Sessions");
  const list = h("ol.rows", { "aria-label": "Sessions" });
  const body = h("section.panel", createSkeleton(6), list);
  const more = h("button", { type: "button", hidden: true }, "Load more");
  const form = createSessionForm();
  const toggle = h("button.primary.action", { type: "button", title: "New session (c)", "aria-expanded": "false" },
    icon("plus"), h("span", "New session"));
  const open = (isOpen) => {
    form.hidden = !isOpen;
    toggle.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) form.begin();
  };
  toggle.addEventListener("click", () => open(form.hidden));
  main.append(createPageHead("Sessions", toggle), form, body, h("div.list-foot", more));
  if (page.search.has("new") && desk.may.act) open(true);

  const data = { sessions: new Map(), next: null };
  const draw = limitToFrame(() => {
    if (!page.isCurrent() || !data.loaded) return;
    const rows = [...data.sessions.values()].sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
    renderRows(list, rows, (session) => session.key, createRow, updateRow);
    more.hidden = !data.next;
    body.querySelector(".empty")?.remove();
    if (!rows.length)
      body.append(createEmpty("No sessions yet",
        "A session is a conversation with one agent. The agent remembers it and answers messages one after the other.",
        h("button.primary.action", { type: "button", onclick: () => open(true) }, "New session"),
        createCommand('midwatch submit --session chat:hello "Say hello"')));
  });
  const startRequest = trackRequests();
  const load = async (before = null) => {
    const { accept } = startRequest();
    const reply = await get(`/sessions${buildQuery({ limit: PAGE, before })}`);
    body.querySelector(".skeleton")?.remove();
    for (const session of reply.sessions) if (accept(session.key)) data.sessions.set(session.key, session);
    data.next = reply.next ?? null;
    data.loaded = true;
    draw();
  };
  more.addEventListener("click", () => runAction(more, () => load(data.next)));
  const readOne = async (key) => {
    const { accept } = startRequest();
    const session = await get(`/sessions/${encodeURIComponent(key)}`).catch(() => null);
    if (session && page.isCurrent() && accept(key)) { data.sessions.set(key, session); draw(); }
  };
  const first = load();
  followEvents(page, {
    first, findSubject: (event) => (isSessionChange(event) ? event.session_key : null), read: readOne,
    reset: () => load().catch(() => {}),
  });
  await first.catch((problem) => showLoadFailure(page, body, problem));
}

const KINDS = new Set([
  "session_opened", "session_closed", "task_submitted", "task_started", "task_finished", "task_waiting",
  "approval_resolved",
]);
const isSessionChange = (event) => event.session_key && !event.session_key.startsWith("bg:") && KINDS.has(event.kind);

function createRow(session) {
  const status = h("span.status");
  const at = createAgo(session.updated_at);
  const queued = h("span.dim.num");
  const link = h("a.row.session-row", { href: `/sessions/${encodeURIComponent(session.key)}` },
    status, h("span.truncate.row-title", session.title || session.key), h("span.tag", session.agent), queued, at,
    h("span.row-sub.truncate.mono", [session.title ? session.key : null,
      session.workdir].filter(Boolean).join("  ·  ")));
  link.parts = { status, at, queued };
  return h("li", link);
}

function updateRow(node, session) {
  const { status, at, queued } = node.firstChild.parts;
  status.dataset.status = session.status;
  setText(status, session.status);
  setText(queued, session.queued ? `${session.queued} queued` : "");
  setAttribute(at, "at", session.updated_at);
}

function createSessionForm() {
  const title = h("input",
    { name: "title", placeholder: "topic (optional)", maxLength: 200, autocomplete: "off" });
  const button = h("button.primary", { type: "submit" }, "Open session");
  let picker = null;
  const place = h("div");
  const form = h("form.form.panel.new-session", { hidden: true, noValidate: true },
    h("div.form-row", place, createField("Directory", createDirectoryPicker())), createField("Title", title),
    h("div.form-buttons", button));
  form.begin = () => {
    if (!picker) { picker = createAgentPicker(); place.replaceChildren(createField("Agent", picker)); }
    picker.focus();
  };
  handleSubmit(form, button, async (values) => {
    const navigate = createNavigator();
    const session = await post("/sessions", pickFilled(values, ["agent", "workdir", "title"]));
    navigate(`/sessions/${encodeURIComponent(session.key)}`);
  });
  return form;
}
