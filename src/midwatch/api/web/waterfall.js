// The events of a task as bars over time: attempts, turns, model calls with their usage, tools and waits. Plain SVG,
// usable with the keyboard.

import { Chart, h, renderKeyed, setProps, setText, svg, truncate } from "./dom.js";
import { formatDollars, formatTokens, formatUsage, sumTokens } from "./figures.js";
import { formatEvent } from "./model.js";
import { callEverySecond, formatDateTime, formatDuration, formatPeriod, now } from "./time.js";

const ROW = 20;
const AXIS = 20;
const MAX_ROWS = 400;

/** Collect spans of time, in the order in which they began. An open span has no end. */
export function collectSpans(events) {
  const spans = [];
  const open = new Map();
  const begin = (key, event, kind, label, depth) => {
    end(key, event); // a new span of the same name ends the old one
    const span = {
      key: `${key}#${event.seq}`, kind, label, depth, from: Date.parse(event.time), to: null, bad: false, event,
      end: null,
    };
    open.set(key, span);
    spans.push(span);
  };
  const end = (key, event, bad = false) => {
    const span = open.get(key);
    if (!span) return;
    open.delete(key);
    Object.assign(span, { to: Date.parse(event.time), bad, end: event });
  };
  const endAll = (event, bad) => { for (const key of [...open.keys()]) end(key, event, bad); };
  for (const event of events) {
    const { kind, payload: p } = event;
    if (kind === "task_submitted") begin("wait", event, "wait", "queued", 0);
    else if (kind === "task_started") {
      end("wait", event);
      begin("attempt", event, "attempt", `attempt ${event.attempt ?? 1}`, 0);
    } else if (kind === "turn_start") begin("turn", event, "turn", "turn", 1);
    else if (kind === "turn_end") end("turn", event, ["error", "timeout", "budget"].includes(p.status));
    else if (kind === "llm_request") begin(`llm ${p.request_id}`, event, "llm", p.model, 2);
    else if (kind === "llm_response") end(`llm ${p.request_id}`, event, p.finish_reason === "error");
    else if (kind === "tool_exec_start") begin(`tool ${p.tool_call_id ?? p.tool}`, event, "tool", p.title || p.tool, 2);
    else if (kind === "tool_exec_end") end(`tool ${p.tool_call_id ?? p.tool}`, event, p.is_error);
    else if (kind === "approval_requested") begin(`ask ${p.approval_id}`, event, "wait", "waiting for an answer", 2);
    else if (kind === "approval_resolved") end(`ask ${p.approval_id}`, event);
    else if (kind === "task_waiting" && p.wait !== "approval") {
      endAll(event, false);
      begin("wait", event, "wait", p.wait, 0);
    } else if (kind === "task_interrupted") {
      endAll(event, false);
      begin("wait", event, "wait", `interrupted: ${p.reason}`, 0);
    } else if (kind === "task_rescued") {
      endAll(event, true);
      if (p.action !== "fail") begin("wait", event, "wait", "rescued", 0);
    } else if (kind === "task_finished") endAll(event, p.status === "failed");
  }
  return spans;
}

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
  #events = [];
  #spans = [];

  connectedCallback() {
    this.list = svg("svg.waterfall", { role: "list", "aria-label": "Steps over time" });
    this.rows = svg("g");
    this.axis = svg("g.axis", { "aria-hidden": "true" });
    this.list.append(this.axis, this.rows);
    this.detail = h("p.waterfall-detail.dim", "Point to a bar or focus it to see details.");
    this.replaceChildren(h("div.waterfall-frame", this.list), this.detail);
    this.list.addEventListener("keydown", (pressed) => this.#moveFocus(pressed));
    this.observe(this.list);
    this.stop = callEverySecond(() => this.#spans.some((span) => span.to === null) && this.draw());
    if (this.#events.length) this.show(this.#events);
  }

  show(events) {
    this.#events = events;
    this.#spans = collectSpans(events).slice(0, MAX_ROWS);
    if (this.isConnected) this.draw();
  }

  draw() {
    const all = this.#spans;
    if (!all.length || !this.isConnected) return;
    const width = this.list.clientWidth;
    const lane = { x: width < 380 ? 100 : 140, end: width - 62 };
    const from = all[0].from;
    const to = Math.max(from + 20, ...all.map((span) => span.to ?? now()));
    const place = (time) => lane.x + ((time - from) / (to - from)) * (lane.end - lane.x);
    setProps(this.list, { height: AXIS + all.length * ROW + 4 });
    this.#drawAxis((to - from) / 1000, Math.max(2, Math.floor((lane.end - lane.x) / 46)),
      (seconds) => place(from + seconds * 1000));
    let line = 0;
    renderKeyed(this.rows, all, (span) => span.key, (span) => this.#createRow(span), (node, span) => {
      const end = span.to ?? now();
      setProps(node, { transform: `translate(0 ${AXIS + line++ * ROW})` });
      setProps(node.bar, {
        x: place(span.from), width: Math.max(3, place(end) - place(span.from)),
        class: `bar ${span.kind}${span.bad ? " bad" : ""}${span.to ? "" : " open"}`,
      });
      const duration = formatDuration((end - span.from) / 1000, { fine: true });
      setText(node.duration, duration);
      const fits = Math.floor((lane.x - 8 - span.depth * 10) / 6.2);
      setText(node.label, truncate(span.label, fits));
      node.setAttribute("aria-label",
        [span.label, span.to ? duration : `${duration} so far`, formatSpanUsage(span)].filter(Boolean).join(", "));
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
    const label = svg("text", { x: 4 + span.depth * 10, y: 14 });
    const duration = svg("text.duration", { x: "100%", y: 14 });
    const note = svg("text.note", { y: 14 });
    const node = svg("g.step", { role: "listitem", tabindex: this.rows.firstChild ? -1 : 0 },
      svg("rect.hit", { width: "100%", height: ROW }), label, bar, note, duration);
    Object.assign(node, { bar, label, note, duration, span });
    const select = () => { for (const row of this.rows.children) row.isSelected =
      row === node; this.#showDetail(span); };
    node.addEventListener("pointerenter", select);
    node.addEventListener("focus", select);
    return node;
  }

  #showDetail(span) {
    const duration = formatDuration(((span.to ?? now()) - span.from) / 1000, { fine: true });
    const ended = span.end && span.end !== span.event ? ` → ${formatEvent(span.end)}` : "";
    const parts = [
      span.label, span.to ? duration : `${duration} so far`, formatSpanUsage(span), formatDateTime(span.event.time),
      `${formatEvent(span.event)}${ended}`,
    ];
    setText(this.detail, parts.filter(Boolean).join(" · "));
  }

  #moveFocus(pressed) {
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
