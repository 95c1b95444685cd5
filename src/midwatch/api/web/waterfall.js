// A task's events as bars over time: attempts, turns, model calls with what they used, tools and waits. Plain SVG,
// readable by keyboard.

import { cut, h, keyed, say, set, svg } from "./dom.js";
import { dollars, tokens, usageText } from "./figures.js";
import { line } from "./model.js";
import { dateTime, duration, everySecond, length, now } from "./time.js";

const ROW = 20;
const AXIS = 20;
const MOST_ROWS = 400;

/** Spans of time, in the order they began. An open one has no end. */
export function spans(events) {
  const found = [];
  const open = new Map();
  const begin = (key, event, kind, label, depth) => {
    end(key, event); // another of the same name: nobody tells of the first any more
    const span = {
      key: `${key}#${event.seq}`, kind, label, depth, from: Date.parse(event.time), to: null, bad: false, event,
      end: null,
    };
    open.set(key, span);
    found.push(span);
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
    if (kind === "task_submitted") begin("wait", event, "wait", "in the queue", 0);
    else if (kind === "task_started") {
      end("wait", event);
      begin("attempt", event, "attempt", `attempt ${event.attempt ?? 1}`, 0);
    } else if (kind === "turn_start") begin("turn", event, "turn", "turn", 1);
    else if (kind === "turn_end") end("turn", event, ["error", "timeout", "budget"].includes(p.status));
    else if (kind === "llm_request") begin(`llm ${p.request_id}`, event, "llm", p.model, 2);
    else if (kind === "llm_response") end(`llm ${p.request_id}`, event, p.finish_reason === "error");
    else if (kind === "tool_exec_start") begin(`tool ${p.tool_call_id ?? p.tool}`, event, "tool", p.title || p.tool, 2);
    else if (kind === "tool_exec_end") end(`tool ${p.tool_call_id ?? p.tool}`, event, p.is_error);
    else if (kind === "approval_requested") begin(`ask ${p.approval_id}`, event, "wait", "waits for an answer", 2);
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
  return found;
}

/** Tokens and money of a model call, as far as it told. */
const used = (span) => (span.kind === "llm" && span.end ? usageText(span.end.payload.usage) : "");

const brief = (span) => {
  const usage = (span.kind === "llm" && span.end?.payload.usage) || {};
  const count = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  return [count ? tokens(count) : null, usage.cost_usd == null ? null : dollars(usage.cost_usd)]
    .filter(Boolean)
    .join(" · ");
};

class Waterfall extends HTMLElement {
  #events = [];
  #spans = [];

  connectedCallback() {
    this.list = svg("svg.waterfall", { role: "list", "aria-label": "Steps over time" });
    this.rows = svg("g");
    this.axis = svg("g.axis", { "aria-hidden": "true" });
    this.list.append(this.axis, this.rows);
    this.detail = h("p.waterfall-detail.dim", "Point at a bar, or focus it, for details.");
    this.replaceChildren(h("div.waterfall-frame", this.list), this.detail);
    this.list.addEventListener("keydown", (pressed) => this.#move(pressed));
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.list);
    this.stop = everySecond(() => this.#spans.some((span) => span.to === null) && this.draw());
    if (this.#events.length) this.show(this.#events);
  }

  disconnectedCallback() {
    this.stop?.();
    this.resized?.disconnect();
  }

  show(events) {
    this.#events = events;
    this.#spans = spans(events).slice(0, MOST_ROWS);
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
    set(this.list, { height: AXIS + all.length * ROW + 4 });
    this.#drawAxis((to - from) / 1000, Math.max(2, Math.floor((lane.end - lane.x) / 46)),
      (seconds) => place(from + seconds * 1000));
    let line = 0;
    keyed(this.rows, all, (span) => span.key, (span) => this.#row(span), (node, span) => {
      const end = span.to ?? now();
      set(node, { transform: `translate(0 ${AXIS + line++ * ROW})` });
      set(node.bar, {
        x: place(span.from), width: Math.max(3, place(end) - place(span.from)),
        class: `bar ${span.kind}${span.bad ? " bad" : ""}${span.to ? "" : " open"}`,
      });
      const took = duration((end - span.from) / 1000, { fine: true });
      say(node.took, took);
      const fits = Math.floor((lane.x - 8 - span.depth * 10) / 6.2);
      say(node.label, cut(span.label, fits));
      node.setAttribute("aria-label",
        [span.label, span.to ? took : `${took} so far`, used(span)].filter(Boolean).join(", "));
      this.#note(node, span, place(span.from), place(end), lane);
      if (node.shown) this.#tell(span);
    });
  }

  /** What a model call used, behind its bar or, where there is no room, before it. */
  #note(node, span, from, to, lane) {
    const text = brief(span);
    const wide = text.length * 6;
    const behind = to + 6 + wide < lane.end;
    say(node.note, text && (behind || from - 6 - wide > lane.x) ? text : "");
    set(node.note, { x: behind ? to + 6 : from - 6, "text-anchor": behind ? "start" : "end" });
  }

  #row(span) {
    const bar = svg("rect", { y: 5, height: ROW - 10, rx: 2.5 });
    const label = svg("text", { x: 4 + span.depth * 10, y: 14 });
    const took = svg("text.took", { x: "100%", y: 14 });
    const note = svg("text.note", { y: 14 });
    const node = svg("g.step", { role: "listitem", tabindex: this.rows.firstChild ? -1 : 0 },
      svg("rect.hit", { width: "100%", height: ROW }), label, bar, note, took);
    Object.assign(node, { bar, label, note, took, span });
    const tell = () => { for (const one of this.rows.children) one.shown = one === node; this.#tell(span); };
    node.addEventListener("pointerenter", tell);
    node.addEventListener("focus", tell);
    return node;
  }

  #tell(span) {
    const took = duration(((span.to ?? now()) - span.from) / 1000, { fine: true });
    const ended = span.end && span.end !== span.event ? ` → ${line(span.end)}` : "";
    const parts = [
      span.label, span.to ? took : `${took} so far`, used(span), dateTime(span.event.time),
      `${line(span.event)}${ended}`,
    ];
    say(this.detail, parts.filter(Boolean).join(" · "));
  }

  #move(pressed) {
    const steps = [...this.rows.children];
    const at = steps.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: steps.length - 1 }[pressed.key];
    if (at < 0 || to === undefined || !steps[to]) return;
    pressed.preventDefault();
    set(steps[at], { tabindex: -1 });
    set(steps[to], { tabindex: 0 });
    steps[to].focus();
  }

  #drawAxis(seconds, most, place) {
    const step = [
      0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600,
      86400,
    ].find((one) => seconds / one <= Math.min(5, most)) ?? 86400 * Math.ceil(seconds / 86400 / 3);
    const ticks = [];
    for (let time = 0; time < seconds * 0.93; time += step) ticks.push(time);
    keyed(this.axis, ticks, (tick) => tick, (tick) => {
      const node = svg("g", svg("line", { y1: AXIS - 4, y2: "100%" }),
        svg("text", { y: 12 },
          tick ? (tick < 10 ? duration(tick, { fine: true }).replace(/\.0 /, " ") : length(tick)) : "0"));
      return node;
    }, (node, tick) => {
      const x = place(tick);
      set(node.children[0], { x1: x, x2: x });
      set(node.children[1], { x });
    });
  }
}

customElements.define("mw-waterfall", Waterfall);
