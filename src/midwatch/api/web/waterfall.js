// The events of a task as bars over time: attempts, turns, model calls with their usage, tools and waits, and the work
// that grew out of the task, which can be folded. Plain SVG, usable with the keyboard.

import { Chart, h, renderKeyed, setProps, setText, svg, truncate } from "./dom.js";
import { formatDollars, formatTokens, formatUsage, sumTokens } from "./figures.js";
import { formatEvent } from "./model.js";
import { collectTree } from "./spans.js";
import { callEverySecond, formatDateTime, formatDuration, formatPeriod, now } from "./time.js";

const ROW = 20;
const AXIS = 20;
const INDENT = 10;
const MAX_ROWS = 400;

/** Format the usage of a model call, as far as it was reported. */
const formatSpanUsage = (span) => (span.kind === "llm" && span.end ? formatUsage(span.end.payload.usage) : "");

const formatBrief = (span) => {
  const usage = (span.kind === "llm" && span.end?.payload.usage) || {};
  const count = sumTokens(usage);
  return [count ? formatTokens(count) : null, usage.cost_usd == null ? null : formatDollars(usage.cost_usd)]
    .filter(Boolean)
    .join(" · ");
};

class Waterfall extends Chart {
  #id = null;
  #works = new Map();
  #folded = new Set();
  #spans = [];

  connectedCallback() {
    this.list = svg("svg.waterfall", { role: "list", "aria-label": "Steps over time" });
    this.rows = svg("g");
    this.axis = svg("g.axis", { "aria-hidden": "true" });
    this.list.append(this.axis, this.rows);
    this.text = h("span", "Point to a bar or focus it to see details.");
    this.link = h("a", { hidden: true }, "Open its task");
    this.detail = h("p.waterfall-detail.dim", this.text, " ", this.link);
    this.replaceChildren(h("div.waterfall-frame", this.list), this.detail);
    this.list.addEventListener("keydown", (pressed) => this.#moveFocus(pressed));
    this.observe(this.list);
    this.stop = callEverySecond(() => this.#spans.some((span) => span.to === null) && this.draw());
    if (this.#works.size) this.show(this.#id, this.#works);
  }

  /** Show the task `id` and the work that grew out of it; `works` has the events of each task. */
  show(id, works) {
    this.#id = id;
    this.#works = works;
    this.#spans = collectTree(id, works, this.#folded).slice(0, MAX_ROWS);
    if (this.isConnected) this.draw();
  }

  #fold({ task }) {
    if (!task) return;
    if (!this.#folded.delete(task)) this.#folded.add(task);
    this.show(this.#id, this.#works);
  }

  draw() {
    const all = this.#spans;
    if (!all.length || !this.isConnected) return;
    const width = this.list.clientWidth;
    const deeper = Math.max(0, ...all.map((span) => span.depth - 3)) * INDENT; // room for the names of nested work
    const lane = { x: (width < 380 ? 100 : 140) + Math.min(60, deeper), end: width - 62 };
    const from = all[0].from;
    const to = Math.max(from + 20, ...all.map((span) => span.to ?? now()));
    const place = (time) => lane.x + ((time - from) / (to - from)) * (lane.end - lane.x);
    setProps(this.list, { height: AXIS + all.length * ROW + 4 });
    this.#drawAxis((to - from) / 1000, Math.max(2, Math.floor((lane.end - lane.x) / 46)),
      (seconds) => place(from + seconds * 1000));
    let line = 0;
    renderKeyed(this.rows, all, (span) => span.key, (span) => this.#createRow(span), (node, span) => {
      const end = span.to ?? now();
      node.span = span;
      setProps(node, { transform: `translate(0 ${AXIS + line++ * ROW})` });
      setProps(node.label, { x: 4 + span.depth * INDENT });
      setProps(node.bar, {
        x: place(span.from), width: Math.max(3, place(end) - place(span.from)),
        class: `bar ${span.kind}${span.bad ? " bad" : ""}${span.to ? "" : " open"}`,
      });
      const duration = formatDuration((end - span.from) / 1000, { fine: true });
      setText(node.duration, duration);
      const fits = Math.max(3, Math.floor((lane.x - 8 - span.depth * INDENT) / (span.task ? 7.2 : 6.2)));
      const name = span.task ? `${span.folded ? "▸" : "▾"} ${span.event.agent_id}` : span.label;
      setText(node.label, truncate(name, fits));
      const state = span.task ? (span.folded ? "folded" : "unfolded") : "";
      node.setAttribute("aria-label",
        [span.label, span.to ? duration : `${duration} so far`, formatSpanUsage(span), state]
          .filter(Boolean).join(", "));
      this.#drawNote(node, span, place(span.from), place(end), lane);
      if (node.isSelected) this.#showDetail(span);
    });
  }

  /** Show the usage of a model call after its bar or, if there is no room, before it. */
  #drawNote(node, span, from, to, lane) {
    const text = formatBrief(span);
    const wide = text.length * 6;
    const behind = to + 6 + wide < lane.end;
    setText(node.note, text && (behind || from - 6 - wide > lane.x) ? text : "");
    setProps(node.note, { x: behind ? to + 6 : from - 6, "text-anchor": behind ? "start" : "end" });
  }

  #createRow(span) {
    const bar = svg("rect", { y: 5, height: ROW - 10, rx: 2.5 });
    const label = svg("text", { y: 14 });
    const duration = svg("text.duration", { x: "100%", y: 14 });
    const note = svg("text.note", { y: 14 });
    const node = svg(span.task ? "g.step.child" : "g.step",
      { role: "listitem", tabindex: this.rows.firstChild ? -1 : 0 },
      svg("rect.hit", { width: "100%", height: ROW }), label, bar, note, duration);
    Object.assign(node, { bar, label, note, duration, span });
    const select = () => { for (const row of this.rows.children) row.isSelected =
      row === node; this.#showDetail(node.span); };
    node.addEventListener("pointerenter", select);
    node.addEventListener("focus", select);
    node.addEventListener("click", () => this.#fold(node.span));
    return node;
  }

  #showDetail(span) {
    const duration = formatDuration(((span.to ?? now()) - span.from) / 1000, { fine: true });
    const ended = span.end && span.end !== span.event ? ` → ${formatEvent(span.end)}` : "";
    const parts = [
      span.label, span.to ? duration : `${duration} so far`, formatSpanUsage(span), formatDateTime(span.event.time),
      `${formatEvent(span.event)}${ended}`,
    ];
    setText(this.text, parts.filter(Boolean).join(" · "));
    setProps(this.link, { hidden: !span.task, href: `/tasks/${span.task}` });
  }

  #moveFocus(pressed) {
    if (pressed.key === "Enter" || pressed.key === " ") {
      pressed.preventDefault();
      return void this.#fold(document.activeElement.span ?? {});
    }
    const steps = [...this.rows.children];
    const at = steps.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: steps.length - 1 }[pressed.key];
    if (at < 0 || to === undefined || !steps[to]) return;
    pressed.preventDefault();
    setProps(steps[at], { tabindex: -1 });
    setProps(steps[to], { tabindex: 0 });
    steps[to].focus();
  }

  #drawAxis(seconds, most, place) {
    const step = [
      0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600,
      86400,
    ].find((size) => seconds / size <= Math.min(5, most)) ?? 86400 * Math.ceil(seconds / 86400 / 3);
    const ticks = [];
    for (let time = 0; time < seconds * 0.93; time += step) ticks.push(time);
    renderKeyed(this.axis, ticks, (tick) => tick, (tick) => {
      const node = svg("g", svg("line", { y1: AXIS - 4, y2: "100%" }),
        svg("text", { y: 12 },
          tick ? (tick < 10 ? formatDuration(tick, { fine: true }).replace(/\.0 /, " ") : formatPeriod(tick)) : "0"));
      return node;
    }, (node, tick) => {
      const x = place(tick);
      setProps(node.children[0], { x1: x, x2: x });
      setProps(node.children[1], { x });
    });
  }
}

customElements.define("mw-waterfall", Waterfall);
