// Handoffs: who passed what to whom, drawn and listed.

import { asking, get, query } from "../api.js";
import { go } from "../app.js";
import { h, keyed, perFrame, say } from "../dom.js";
import { act, command, empty, failure, pageHead, panel, skeleton } from "../parts.js";
import { handoffRow, MOST, rootOf, updateHandoffRow } from "../handoff-parts.js";
import { follow } from "../automation-parts.js";

const STATUSES = {
  "": [], open: ["pending", "accepted", "in_progress"], completed: ["completed"],
  failed: ["failed", "rejected", "expired"], cancelled: ["cancelled"],
};
const LISTED = 100;

export default async function handoffs(main, page) {
  page.setTitle("Handoffs");
  const status = STATUSES[page.search.get("status")] ? page.search.get("status") : "";
  const agent = page.search.get("agent") ?? "";
  const root = page.search.get("root") ?? "";
  const list = h("ol.rows", { "aria-label": "Handoffs" });
  const drawing = document.createElement("mw-passing");
  const drawn = panel("Who passed what to whom", { name: "passing-panel", count: true });
  drawn.body.append(drawing);
  const body = h("section.panel", skeleton(5), list);
  const more = h("button", { type: "button", hidden: true }, "Load more");
  main.append(pageHead("Handoffs"), filters({ status, agent, root }), drawn.node, body, h("div.list-foot", more));
  const all = new Map();
  let listed = LISTED;
  let next = null;
  let loaded = false;
  const fits = (one) => (!status || STATUSES[status].includes(one.status)) &&
    (!agent || [one.from_agent_id, one.to_agent_id].includes(agent)) &&
    (!root || rootOf(one) === root || one.task_id === root);
  const draw = perFrame(() => {
    if (!page.isShown() || !loaded) return;
    const rows = [...all.values()].filter(fits).sort((a, b) => (a.id < b.id ? 1 : -1)).slice(0, listed);
    keyed(list, rows, (one) => one.id, handoffRow, updateHandoffRow);
    drawing.show(rows);
    drawn.node.hidden = !rows.length;
    say(drawn.counter, rows.length > MOST ? `the latest ${MOST}` : "");
    more.hidden = !next;
    body.querySelector(".empty")?.remove();
    if (!rows.length) body.append(nothing(status || agent || root));
  });
  const ask = asking();
  const take = (found, isNext) => {
    if (!page.isShown()) return;
    body.querySelector(".skeleton")?.remove();
    for (const one of found) if (isNext(one.id)) all.set(one.id, one);
    loaded = true;
    draw();
  };
  const read = async (before = null) => {
    const { isNext } = ask();
    const found = await get(`/handoffs${query({ status: STATUSES[status], agent, root, before, limit: LISTED })}`);
    next = found.next;
    take(found.handoffs, isNext);
  };
  more.addEventListener("click", () => act(more, () => { listed += LISTED; return read(next); }));
  const first = read();
  follow(page, {
    first,
    concerns: (event) => (event.kind.startsWith("handoff_") ? event.payload.handoff_id : null),
    read: async (id) => {
      const { isNext } = ask();
      const found = await get(`/handoffs/${id}`).catch(() => null);
      if (found) take([found], isNext);
    },
    reset: () => { all.clear(); listed = LISTED; read().catch(() => {}); },
  });
  try {
    await first;
  } catch (problem) {
    if (page.isShown())
      body.replaceChildren(failure(problem, () => go(location.pathname + location.search, { replace: true })));
  }
}

function filters({ status, agent, root }) {
  const change = (wish) => go(`/handoffs${query({ status, agent, root, ...wish })}`, { replace: true });
  const input = h("input", {
    name: "agent", value: agent, placeholder: "agent", "aria-label": "Agent", autocomplete: "off", "data-slash": "",
    onchange: () => change({ agent: input.value.trim() }),
  });
  return h("div.filters", h("div.segments", { role: "group", "aria-label": "Status" },
    Object.keys(STATUSES).map((name) => h("button",
      { type: "button", "aria-pressed": String(status === name), onclick: () => change({ status: name }) },
      name || "all"))),
    input,
    root
      ? h("button", { type: "button", onclick: () => change({ root: "" }), title: "Show those of all tasks" },
        `of ${root} ×`)
      : null);
}

function nothing(filtered) {
  if (filtered) return empty("No handoff is like that", "", h("a.button", { href: "/handoffs" }, "Show all"));
  return empty("No handoffs yet",
    "When an agent passes work to another, or you hand a task over from its page, it is drawn here.",
    command('midwatch handoff to demo "Say hello"'));
}
