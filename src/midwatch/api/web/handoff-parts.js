// Handoffs as they are shown everywhere: their words, their rows, the form that hands a task over, and the drawing of
// who passed what to whom.

import { post } from "./api.js";
import { go, onward } from "./app.js";
import { cut, firstLine, h, keyed, say, set, svg, wishKey } from "./dom.js";
import { isOpen } from "./model.js";
import { ask, attribute, elapsed, field, toast } from "./parts.js";
import { agentPicker } from "./picker.js";
import { duration, everySecond, now } from "./time.js";

const OPEN = new Set(["pending", "accepted", "in_progress"]);
const MARKS = { completed: "done", in_progress: "running", accepted: "running", rejected: "failed", expired: "failed" };
const ROW = 34;
const HEAD = 26;
const LANE = 92;
const START = 96;
/** How many are drawn. */
export const MOST = 60;

export const isOpenHandoff = (one) => OPEN.has(one.status);
export const sourceOf = (one) => one.from_agent_id || one.creator || "somebody";
export const targetOf = (one) => one.to_agent_id || "nobody";
/** The task all of it began with; without one, the task it made. */
export const rootOf = (one) => one.root_id ?? one.task_id ?? one.id;

/** What is to be done, on a line. */
export function whatOf(one, length = 160) {
  const { description, input, type } = one.task;
  return firstLine(description || (typeof input === "string" ? input : JSON.stringify(input)), length) || type ||
    one.id;
}

/** What is worth knowing of it beside its status, on a line. */
export function noteOf(one) {
  const refused = one.refusals.map((refusal) => refusal.agent).filter((agent) => agent !== one.to_agent_id);
  return [
    one.form === "transfer" ? "transfer" : "", refused.length ? `refused by ${refused.join(", ")}` : "",
    one.retry_count ? `${one.retry_count + 1} tries` : "", one.reason ?? "",
  ].filter(Boolean).join(" · ");
}

/** Its status as a mark. */
export function updateMark(node, one) {
  node.dataset.status = MARKS[one.status] ?? one.status;
  say(node, one.status.replace("_", " "));
  node.title = one.reason ?? "";
  return node;
}

/** Who passes it to whom. */
export const wayOf = (one) => h("span.way", h("b", sourceOf(one)), h("span.faint", { "aria-hidden": "true" }, "→"),
  h("span.away", " to "), h("b", targetOf(one)));

/** A handoff as a row that opens its record. */
export function handoffRow(one) {
  const parts = {
    status: h("span.status"), way: h("span.cut"), what: h("span.cut.row-sub"),
    time: elapsed(one.created_at, one.completed_at),
  };
  const node = h("li",
    h("a.row.handoff-row", { href: `/handoffs/${one.id}` }, parts.status, parts.way, parts.time, parts.what));
  node.parts = parts;
  return node;
}

export function updateHandoffRow(node, one) {
  const { status, way, what, time } = node.parts;
  updateMark(status, one);
  if (way.dataset.shown !== targetOf(one)) way.replaceChildren(wayOf(one));
  way.dataset.shown = targetOf(one);
  say(what, [`${one.task.type ? `[${one.task.type}] ` : ""}${whatOf(one)}`, noteOf(one)].filter(Boolean).join(" · "));
  attribute(time, "to", one.completed_at);
}

/** The form that hands a task over. */
export function handOver(task) {
  let key = wishKey();
  const agents = agentPicker("", (one) => one.name !== task.agent && one.handoffs !== false);
  agents.name = "to";
  const text = h("textarea",
    { name: "text", rows: 4, placeholder: "What is to be done; empty: the task's own prompt and result" });
  ask("Hand this task over", [
    field("To", agents),
    field("Words", text, "What was said so far goes along."),
    isOpen(task)
      ? h("label.check", h("input", { type: "checkbox", name: "stop", checked: true }), " Stop this task")
      : null,
  ], "Hand over", async (said) => {
    const wish = { to: said.to, source_task: task.id };
    if (said.text.trim()) wish.task = { description: said.text };
    const lead = onward();
    const made = await post("/handoffs", wish, { key }).catch((problem) => {
      if (problem.code.startsWith("handoff_")) {
        key = wishKey(); // what was refused is on record under the old one
        problem.field = "to";
      }
      throw problem;
    });
    if (said.stop) await post(`/tasks/${task.id}/cancel`).catch(() => {}); // it may have ended meanwhile
    toast(`Handed to ${made.to_agent_id}.`);
    lead(`/handoffs/${made.id}`);
  });
}

/** Agents as columns below a head that stays in sight, handoffs as arrows, those of one root together from top to
 * bottom in the order of time, each beside its status. */
class Passing extends HTMLElement {
  #all = [];

  connectedCallback() {
    this.list = svg("svg.passing", { role: "list", "aria-label": "Who passed what to whom" });
    const tip = (id, name) => svg("marker", {
      id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse",
      class: name,
    }, svg("path", { d: "M0 0.6L7.4 4L0 7.4z" }));
    this.head = svg("svg.passing.passing-head", { height: HEAD, "aria-hidden": "true" });
    this.lanes = svg("g", { "aria-hidden": "true" });
    this.groups = svg("g", { "aria-hidden": "true" });
    this.rows = svg("g");
    this.list.append(svg("defs", ["plain", "good", "bad", "busy"].map((name) => tip(`tip-${name}`, name))), this.lanes,
      this.groups, this.rows);
    this.replaceChildren(h("div.passing-scroll", this.head, this.list));
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this);
    this.stop = everySecond(() => this.#all.some(isOpenHandoff) && this.draw());
  }

  disconnectedCallback() {
    this.stop?.();
    this.resized?.disconnect();
  }

  /** Newest first, as the interface lists them. */
  show(all) {
    this.#all = all.slice(0, MOST);
    if (this.isConnected) this.draw();
  }

  draw() {
    const groups = Object.values(Object.groupBy(this.#all, rootOf))
      .map((group) => group.sort((a, b) => (a.id < b.id ? -1 : 1)));
    const names = [...new Set(groups.flat().flatMap((one) => [sourceOf(one), targetOf(one)]))];
    const width = Math.max(this.firstChild.clientWidth, names.length * LANE + START);
    const step = (width - START) / Math.max(1, names.length);
    const place = (name) => START + (names.indexOf(name) + 0.5) * step;
    let y = 0;
    const lines = groups.map((group) => {
      const top = y;
      const rows = group.map((one) => ({ one, y: (y += ROW) }));
      y += 10;
      return { key: rootOf(group[0]), top, rows };
    });
    set(this.head, { width });
    set(this.list, { width, height: y });
    const fits = Math.floor(step / 7.2);
    keyed(this.head, names, (name) => name, (name) => svg("g.lane", svg("title", name), svg("text", { y: 15 })),
      (node, name) => {
        set(node.lastChild, { x: place(name) });
        say(node.lastChild, cut(name, fits));
      });
    keyed(this.lanes, names, (name) => name, () => svg("line.lane-line", { y1: 0 }),
      (node, name) => set(node, { x1: place(name), x2: place(name), y2: y - 6 }));
    keyed(this.groups, lines.slice(1), (group) => group.key, () => svg("line.between"),
      (node, group) => set(node, { x1: 0, x2: width, y1: group.top, y2: group.top }));
    keyed(this.rows, lines.flatMap((group) => group.rows), ({ one }) => one.id, (row) => this.#row(row.one),
      (node, row) => this.#update(node, row, place));
  }

  #row(one) {
    const parts = {
      line: svg("path.arrow"), label: svg("text.what"), state: svg("text.state"), took: svg("text.took"),
    };
    const link = svg("a", { href: `/handoffs/${one.id}` },
      svg("rect.hit", { width: "100%", height: ROW, y: -ROW + 8 }), parts.line, parts.label, parts.state, parts.took);
    link.addEventListener("click", (clicked) => {
      if (clicked.button || clicked.metaKey || clicked.ctrlKey || clicked.shiftKey) return;
      clicked.preventDefault();
      go(`/handoffs/${one.id}`);
    });
    const told = svg("title");
    const node = svg("g.pass", { role: "listitem" }, told, link);
    Object.assign(node, { parts, link, told });
    return node;
  }

  #update(node, { one, y }, place) {
    const { line, label, state, took } = node.parts;
    const from = place(sourceOf(one));
    const to = place(targetOf(one));
    const tone = { completed: "good", failed: "bad", rejected: "bad", expired: "bad" }[one.status] ??
      (isOpenHandoff(one) ? "busy" : "plain");
    const time = duration(
      ((one.completed_at ? Date.parse(one.completed_at) : now()) - Date.parse(one.created_at)) / 1000, { fine: true });
    set(node, { transform: `translate(0 ${y})`, "data-tone": tone });
    set(line, {
      d: from === to ? `M${from} -4h26v8h-24` : `M${from} 0H${to + (to > from ? -3 : 3)}`,
      "marker-end": `url(#tip-${tone})`,
    });
    const room = Math.max(Math.abs(to - from), 60) - 14;
    const fits = Math.floor(room / 7);
    const what = whatOf(one, 400);
    say(node.told, [`${sourceOf(one)} → ${targetOf(one)}: ${whatOf(one)}`, noteOf(one)].filter(Boolean).join("\n"));
    say(label, cut(what, Math.max(fits, 4)));
    set(label, { x: Math.min(from, to) + (from === to ? 32 : 8), y: -7 });
    say(state, one.status.replace("_", " "));
    set(state, { x: 4, y: -7 });
    say(took, time);
    set(took, { x: 4, y: 6 });
    node.link.setAttribute("aria-label",
      `${sourceOf(one)} to ${targetOf(one)}: ${whatOf(one)}; ${state.textContent}, ${time}`);
  }
}

customElements.define("mw-passing", Passing);
