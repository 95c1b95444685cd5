// Elements that all pages with handoffs share: texts, rows, the form that hands a task over, the chart of handoffs.

import { post } from "./api.js";
import { createNavigator, go } from "./app.js";
import { Chart, createRequestKey, getFirstLine, h, renderKeyed, setProps, setText, svg, truncate } from "./dom.js";
import { isOpen } from "./model.js";
import { createElapsed, createField, openForm, setAttribute, showToast } from "./parts.js";
import { createAgentPicker } from "./picker.js";
import { callEverySecond, formatDuration, now } from "./time.js";

const OPEN = new Set(["pending", "accepted", "in_progress"]);
const STATUS_STYLES = {
  completed: "done", in_progress: "running", accepted: "running", rejected: "failed", expired: "failed",
};
const ROW = 34;
const HEAD = 26;
const LANE = 92;
const START = 96;
/** The chart shows at most this many handoffs. */
export const MAX_DRAWN = 60;

export const isOpenHandoff = (handoff) => OPEN.has(handoff.status);
export const getSource = (handoff) => handoff.from_agent_id || handoff.creator || "unknown";
export const getTarget = (handoff) => handoff.to_agent_id || "no agent";
/** Return the task with which the chain of handoffs began; without one, the task of the handoff. */
export const getRoot = (handoff) => handoff.root_id ?? handoff.task_id ?? handoff.id;

/** Return the work of a handoff on one line. */
export function describeWork(handoff, length = 160) {
  const { description, input, type } = handoff.task;
  return getFirstLine(description || (typeof input === "string" ? input : JSON.stringify(input)), length) || type ||
    handoff.id;
}

/** Return what is notable about a handoff besides its status, on one line. */
export function formatNote(handoff) {
  const refusers = handoff.refusals.map((refusal) => refusal.agent).filter((agent) => agent !== handoff.to_agent_id);
  return [
    handoff.form === "transfer" ? "transfer" : "", refusers.length ? `refused by ${refusers.join(", ")}` : "",
    handoff.retry_count ? `${handoff.retry_count + 1} attempts` : "", handoff.reason ?? "",
  ].filter(Boolean).join(" · ");
}

/** Show the status of a handoff. */
export function updateHandoffStatus(node, handoff) {
  node.dataset.status = STATUS_STYLES[handoff.status] ?? handoff.status;
  setText(node, handoff.status.replace("_", " "));
  node.title = handoff.reason ?? "";
  return node;
}

/** Create the names of the agents that hand over and take over. */
export const createParties = (handoff) => h("span.parties", h("b", getSource(handoff)),
  h("span.faint", { "aria-hidden": "true" }, "→"), h("span.offscreen", " to "), h("b", getTarget(handoff)));

/** Create the row of a handoff, which opens its page. */
export function createHandoffRow(handoff) {
  const parts = {
    status: h("span.status"), parties: h("span.truncate"), what: h("span.truncate.row-sub"),
    time: createElapsed(handoff.created_at, handoff.completed_at),
  };
  return Object.assign(h("li",
    h("a.row.handoff-row", { href: `/handoffs/${handoff.id}` }, parts.status, parts.parties, parts.time, parts.what)),
    { parts });
}

export function updateHandoffRow(node, handoff) {
  const { status, parties, what, time } = node.parts;
  updateHandoffStatus(status, handoff);
  if (parties.dataset.target !== getTarget(handoff)) parties.replaceChildren(createParties(handoff));
  parties.dataset.target = getTarget(handoff);
  const type = handoff.task.type ? `[${handoff.task.type}] ` : "";
  setText(what, [`${type}${describeWork(handoff)}`, formatNote(handoff)].filter(Boolean).join(" · "));
  setAttribute(time, "to", handoff.completed_at);
}

/** Open the form that hands a task over. */
export function openHandoffForm(task) {
  let key = createRequestKey();
  const agents = createAgentPicker("", (agent) => agent.name !== task.agent && agent.handoffs !== false);
  agents.name = "to";
  const text = h("textarea",
    { name: "text", rows: 4, placeholder: "What should be done. Empty: the prompt and result of this task" });
  openForm("Hand over this task", [
    createField("To", agents),
    createField("Instructions", text, "The conversation so far is included."),
    isOpen(task)
      ? h("label.check", h("input", { type: "checkbox", name: "stop", checked: true }), " Stop this task")
      : null,
  ], "Hand over", async (values) => {
    const body = { to: values.to, source_task: task.id };
    if (values.text.trim()) body.task = { description: values.text };
    const navigate = createNavigator();
    const created = await post("/handoffs", body, { key }).catch((problem) => {
      if (problem.code.startsWith("handoff_")) {
        key = createRequestKey(); // the refused handoff is stored under the old key
        problem.field = "to";
      }
      throw problem;
    });
    if (values.stop) await post(`/tasks/${task.id}/cancel`).catch(() => {}); // it may have ended in the meantime
    showToast(`Handed over to ${created.to_agent_id}.`);
    navigate(`/handoffs/${created.id}`);
  });
}

/** A chart with agents as columns and handoffs as arrows, grouped by root task and sorted by time. The head with the
 * names stays visible. */
class HandoffChart extends Chart {
  #handoffs = [];

  connectedCallback() {
    this.list = svg("svg.handoff-chart", { role: "list", "aria-label": "Chart of handoffs" });
    const tip = (id, name) => svg("marker", {
      id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse",
      class: name,
    }, svg("path", { d: "M0 0.6L7.4 4L0 7.4z" }));
    this.head = svg("svg.handoff-chart.handoff-chart-head", { height: HEAD, "aria-hidden": "true" });
    this.lanes = svg("g", { "aria-hidden": "true" });
    this.groups = svg("g", { "aria-hidden": "true" });
    this.rows = svg("g");
    this.list.append(svg("defs", ["plain", "good", "bad", "busy"].map((name) => tip(`tip-${name}`, name))), this.lanes,
      this.groups, this.rows);
    this.replaceChildren(h("div.handoff-chart-scroll", this.head, this.list));
    this.observe(this);
    this.stop = callEverySecond(() => this.#handoffs.some(isOpenHandoff) && this.draw());
  }

  /** Show handoffs, which are given newest first. */
  show(handoffs) {
    this.#handoffs = handoffs.slice(0, MAX_DRAWN);
    if (this.isConnected) this.draw();
  }

  draw() {
    const groups = Object.values(Object.groupBy(this.#handoffs, getRoot))
      .map((group) => group.sort((a, b) => (a.id < b.id ? -1 : 1)));
    const names = [...new Set(groups.flat().flatMap((handoff) => [getSource(handoff), getTarget(handoff)]))];
    const width = Math.max(this.firstChild.clientWidth, names.length * LANE + START);
    const step = (width - START) / Math.max(1, names.length);
    const place = (name) => START + (names.indexOf(name) + 0.5) * step;
    let y = 0;
    const lines = groups.map((group) => {
      const top = y;
      const rows = group.map((handoff) => ({ handoff, y: (y += ROW) }));
      y += 10;
      return { key: getRoot(group[0]), top, rows };
    });
    setProps(this.head, { width });
    setProps(this.list, { width, height: y });
    const fits = Math.floor(step / 7.2);
    renderKeyed(this.head, names, (name) => name, (name) => svg("g.lane", svg("title", name), svg("text", { y: 15 })),
      (node, name) => {
        setProps(node.lastChild, { x: place(name) });
        setText(node.lastChild, truncate(name, fits));
      });
    renderKeyed(this.lanes, names, (name) => name, () => svg("line.lane-line", { y1: 0 }),
      (node, name) => setProps(node, { x1: place(name), x2: place(name), y2: y - 6 }));
    renderKeyed(this.groups, lines.slice(1), (group) => group.key, () => svg("line.between"),
      (node, group) => setProps(node, { x1: 0, x2: width, y1: group.top, y2: group.top }));
    renderKeyed(this.rows, lines.flatMap((group) => group.rows), ({ handoff }) => handoff.id,
      (row) => this.#createRow(row.handoff),
      (node, row) => this.#updateRow(node, row, place));
  }

  #createRow(handoff) {
    const parts = {
      line: svg("path.arrow"), label: svg("text.what"), state: svg("text.state"), duration: svg("text.duration"),
    };
    const link = svg("a", { href: `/handoffs/${handoff.id}` },
      svg("rect.hit", { width: "100%", height: ROW, y: -ROW + 8 }), parts.line, parts.label, parts.state,
      parts.duration);
    link.addEventListener("click", (clicked) => {
      if (clicked.button || clicked.metaKey || clicked.ctrlKey || clicked.shiftKey) return;
      clicked.preventDefault();
      go(`/handoffs/${handoff.id}`);
    });
    const tooltip = svg("title");
    const node = svg("g.handoff-arrow", { role: "listitem" }, tooltip, link);
    Object.assign(node, { parts, link, tooltip });
    return node;
  }

  #updateRow(node, { handoff, y }, place) {
    const { line, label, state, duration } = node.parts;
    const from = place(getSource(handoff));
    const to = place(getTarget(handoff));
    const tone = { completed: "good", failed: "bad", rejected: "bad", expired: "bad" }[handoff.status] ??
      (isOpenHandoff(handoff) ? "busy" : "plain");
    const time = formatDuration(
      ((handoff.completed_at ? Date.parse(handoff.completed_at) : now()) - Date.parse(handoff.created_at)) / 1000,
      { fine: true });
    setProps(node, { transform: `translate(0 ${y})`, "data-tone": tone });
    setProps(line, {
      d: from === to ? `M${from} -4h26v8h-24` : `M${from} 0H${to + (to > from ? -3 : 3)}`,
      "marker-end": `url(#tip-${tone})`,
    });
    const room = Math.max(Math.abs(to - from), 60) - 14;
    const fits = Math.floor(room / 7);
    const what = describeWork(handoff, 400);
    setText(node.tooltip, [`${getSource(handoff)} → ${getTarget(handoff)}: ${describeWork(handoff)}`,
      formatNote(handoff)].filter(Boolean).join("\n"));
    setText(label, truncate(what, Math.max(fits, 4)));
    setProps(label, { x: Math.min(from, to) + (from === to ? 32 : 8), y: -7 });
    setText(state, handoff.status.replace("_", " "));
    setProps(state, { x: 4, y: -7 });
    setText(duration, time);
    setProps(duration, { x: 4, y: 6 });
    node.link.setAttribute("aria-label",
      `${getSource(handoff)} to ${getTarget(handoff)}: ${describeWork(handoff)}; ${state.textContent}, ${time}`);
  }
}

customElements.define("mw-handoff-chart", HandoffChart);
