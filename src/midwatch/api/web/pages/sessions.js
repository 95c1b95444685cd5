// Sessions: conversations with agents, the most recently used first, and a form for a new one.

import { asking, get, post, query } from "../api.js";
import { go, onward } from "../app.js";
import { desk } from "../desk.js";
import { h, perFrame, placed, say } from "../dom.js";
import { icon } from "../icons.js";
import { agentPicker, directoryPicker } from "../picker.js";
import { act, agoOf, attribute, command, empty, failure, field, pageHead, showProblem, skeleton } from "../parts.js";
import { follow } from "../automation-parts.js";

const PAGE = 50;

export default async function sessions(main, page) {
  page.setTitle("Sessions");
  const list = h("ol.rows", { "aria-label": "Sessions" });
  const body = h("section.panel", skeleton(6), list);
  const more = h("button", { type: "button", hidden: true }, "Load more");
  const form = newSession();
  const toggle = h("button.primary.acts", { type: "button", title: "New session (c)", "aria-expanded": "false" },
    icon("plus"), h("span", "New session"));
  const open = (shown) => {
    form.hidden = !shown;
    toggle.setAttribute("aria-expanded", String(shown));
    if (shown) form.begin();
  };
  toggle.addEventListener("click", () => open(form.hidden));
  main.append(pageHead("Sessions", toggle), form, body, h("div.list-foot", more));
  if (page.search.has("new") && desk.may.act) open(true);

  const data = { sessions: new Map(), next: null };
  const draw = perFrame(() => {
    if (!page.isShown() || !data.loaded) return;
    const rows = [...data.sessions.values()].sort((a, b) => (a.updated_at < b.updated_at ? 1 : -1));
    placed(list, rows, (one) => one.key, row, update);
    more.hidden = !data.next;
    body.querySelector(".empty")?.remove();
    if (!rows.length)
      body.append(empty("No sessions yet",
        "A session is a conversation with one agent: it remembers what was said, " +
          "and its messages are answered one after the other.",
        h("button.primary.acts", { type: "button", onclick: () => open(true) }, "New session"),
        command('midwatch submit --session chat:hello "Say hello"')));
  });
  const ask = asking();
  const load = async (before = null) => {
    const { isNext } = ask();
    const found = await get(`/sessions${query({ limit: PAGE, before })}`);
    body.querySelector(".skeleton")?.remove();
    for (const one of found.sessions) if (isNext(one.key)) data.sessions.set(one.key, one);
    data.next = found.next ?? null;
    data.loaded = true;
    draw();
  };
  more.addEventListener("click", () => act(more, () => load(data.next)));
  const readOne = async (key) => {
    const { isNext } = ask();
    const found = await get(`/sessions/${encodeURIComponent(key)}`).catch(() => null);
    if (found && page.isShown() && isNext(key)) { data.sessions.set(key, found); draw(); }
  };
  const first = load();
  follow(page, {
    first, concerns: (event) => (changes(event) ? event.session_key : null), read: readOne,
    reset: () => load().catch(() => {}),
  });
  try {
    await first;
  } catch (problem) {
    if (page.isShown()) body.replaceChildren(failure(problem, () => go("/sessions", { replace: true })));
  }
}

const KINDS = new Set([
  "session_opened", "session_closed", "task_submitted", "task_started", "task_finished", "task_waiting",
  "approval_resolved",
]);
const changes = (event) => event.session_key && !event.session_key.startsWith("bg:") && KINDS.has(event.kind);

function row(one) {
  const status = h("span.status");
  const at = agoOf(one.updated_at);
  const queued = h("span.dim.num");
  const link = h("a.row.session-row", { href: `/sessions/${encodeURIComponent(one.key)}` },
    status, h("span.cut.row-title", one.title || one.key), h("span.tag", one.agent), queued, at,
    h("span.row-sub.cut.mono", [one.title ? one.key : null, one.workdir].filter(Boolean).join("  ·  ")));
  link.parts = { status, at, queued };
  return h("li", link);
}

function update(node, one) {
  const { status, at, queued } = node.firstChild.parts;
  status.dataset.status = one.status;
  say(status, one.status);
  say(queued, one.queued ? `${one.queued} queued` : "");
  attribute(at, "at", one.updated_at);
}

function newSession() {
  const title = h("input",
    { name: "title", placeholder: "what it is about (optional)", maxLength: 200, autocomplete: "off" });
  const button = h("button.primary", { type: "submit" }, "Open");
  let picker = null;
  const place = h("div");
  const form = h("form.form.panel.new-session", { hidden: true, noValidate: true },
    h("div.form-row", place, field("Directory", directoryPicker())), field("Title", title),
    h("div.form-buttons", button));
  form.begin = () => {
    if (!picker) { picker = agentPicker(); place.replaceChildren(field("Agent", picker)); }
    picker.focus();
  };
  form.addEventListener("submit", (sent) => {
    sent.preventDefault();
    act(button, async () => {
      const said = Object.fromEntries(new FormData(form));
      const body = Object.fromEntries(["agent", "workdir", "title"]
        .filter((name) => said[name]?.trim())
        .map((name) => [name, said[name].trim()]));
      const lead = onward();
      try {
        lead(`/sessions/${encodeURIComponent((await post("/sessions", body)).key)}`);
      } catch (problem) {
        showProblem(form, problem);
      }
    });
  });
  return form;
}
