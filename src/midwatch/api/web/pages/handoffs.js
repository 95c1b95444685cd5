// Handoffs between agents, as a chart and as a list.

import { buildQuery, get, getFilledPage, trackRequests } from "../api.js";
import { go, showLoadFailure } from "../app.js";
import { h, limitToFrame, renderKeyed, setText } from "../dom.js";
import {
  createCommand, createEmpty, createPageHead, createPanel, createSegments, createSkeleton, runAction,
} from "../parts.js";
import { createHandoffRow, getRoot, MAX_DRAWN, updateHandoffRow } from "../handoff-parts.js";
import { followEvents } from "../automation-parts.js";

const STATUSES = {
  "": [], open: ["pending", "accepted", "in_progress"], completed: ["completed"],
  failed: ["failed", "rejected", "expired"], cancelled: ["cancelled"],
};
const LISTED = 100;

export default async function renderHandoffs(main, page) {
  page.setTitle("Handoffs");
  const status = STATUSES[page.search.get("status")] ? page.search.get("status") : "";
  const agent = page.search.get("agent") ?? "";
  const root = page.search.get("root") ?? "";
  const list = h("ol.rows", { "aria-label": "Handoffs" });
  const chart = document.createElement("mw-handoff-chart");
  const chartPanel = createPanel("Handoffs between agents", { name: "handoff-chart-panel", count: true });
  chartPanel.body.append(chart);
  const body = h("section.panel", createSkeleton(5), list);
  const more = h("button", { type: "button", hidden: true }, "Load more");
  main.append(createPageHead("Handoffs"), createFilters({ status, agent, root }), chartPanel.node, body,
    h("div.list-foot", more));
  const all = new Map();
  let shownCount = LISTED;
  let next = null;
  let loaded = false;
  const matches = (handoff) => (!status || STATUSES[status].includes(handoff.status)) &&
    (!agent || [handoff.from_agent_id, handoff.to_agent_id].includes(agent)) &&
    (!root || getRoot(handoff) === root || handoff.task_id === root);
  const draw = limitToFrame(() => {
    if (!page.isCurrent() || !loaded) return;
    const rows = [...all.values()].filter(matches).sort((a, b) => (a.id < b.id ? 1 : -1)).slice(0, shownCount);
    renderKeyed(list, rows, (handoff) => handoff.id, createHandoffRow, updateHandoffRow);
    chart.show(rows);
    chartPanel.node.hidden = !rows.length;
    setText(chartPanel.counter, rows.length > MAX_DRAWN ? `latest ${MAX_DRAWN}` : "");
    more.hidden = !next;
    body.querySelector(".empty")?.remove();
    if (!rows.length) body.append(createEmptyList(status || agent || root));
  });
  const startRequest = trackRequests();
  const store = (handoffs, accept) => {
    if (!page.isCurrent()) return;
    body.querySelector(".skeleton")?.remove();
    for (const handoff of handoffs) if (accept(handoff.id)) all.set(handoff.id, handoff);
    loaded = true;
    draw();
  };
  const read = async (before = null) => {
    const { accept } = startRequest();
    const filter = { status: STATUSES[status], agent, root, limit: LISTED };
    const reply = await getFilledPage(page, "handoffs", filter, before);
    next = reply.next;
    store(reply.handoffs, accept);
  };
  more.addEventListener("click", () => runAction(more, () => { shownCount += LISTED; return read(next); }));
  const first = read();
  followEvents(page, {
    first,
    findSubject: (event) => (event.kind.startsWith("handoff_") ? event.payload.handoff_id : null),
    read: async (id) => {
      const { accept } = startRequest();
      const handoff = await get(`/handoffs/${id}`).catch(() => null);
      if (handoff) store([handoff], accept);
    },
    reset: () => { all.clear(); shownCount = LISTED; read().catch(() => {}); },
  });
  await first.catch((problem) => showLoadFailure(page, body, problem));
}

function createFilters({ status, agent, root }) {
  const change = (changes) => go(`/handoffs${buildQuery({ status, agent, root, ...changes })}`, { replace: true });
  const input = h("input", {
    name: "agent", value: agent, placeholder: "agent", "aria-label": "Agent", autocomplete: "off", "data-slash": "",
    onchange: () => change({ agent: input.value.trim() }),
  });
  const choices = Object.keys(STATUSES).map((name) => [name, name || "all"]);
  return h("div.filters", createSegments("Status", choices, status, (name) => change({ status: name })), input,
    root
      ? h("button", { type: "button", onclick: () => change({ root: "" }), title: "Show the handoffs of all tasks" },
        `task ${root} ×`)
      : null);
}

function createEmptyList(filtered) {
  if (filtered) return createEmpty("No matching handoffs", "", h("a.button", { href: "/handoffs" }, "Clear filters"));
  return createEmpty("No handoffs yet",
    "When an agent hands work over to another agent, or you hand over a task from its page, it is shown here.",
    createCommand('midwatch handoff to demo "Say hello"'));
}
