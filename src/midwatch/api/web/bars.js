// A bar chart with one bar per day. Plain SVG; the table next to it has the same numbers.

import { Chart, h, setProps, setText, svg } from "./dom.js";

const HEIGHT = 132;
const TOP = 14;
const FOOT = 18;

/** A chart that redraws itself when its width changes. `show` sets the days, the value of a day and its format. */
class DayBars extends Chart {
  #days = [];
  #getValue = () => null;
  #formatValue = String;

  connectedCallback() {
    this.drawing = svg("svg.bars", { role: "img", height: HEIGHT });
    this.caption = h("p.bars-caption.dim.num", "");
    this.replaceChildren(this.drawing, this.caption);
    this.drawing.addEventListener("pointerleave", () => this.#describe());
    this.observe(this.drawing);
  }

  show(days, getValue, formatValue, label) {
    [this.#days, this.#getValue, this.#formatValue] = [days, getValue, formatValue];
    this.drawing.setAttribute("aria-label", label);
    this.draw();
  }

  draw() {
    const width = this.drawing.clientWidth;
    const days = this.#days;
    if (!width || !days.length) return;
    const max = Math.max(...days.map((day) => this.#getValue(day) ?? 0));
    const step = width / days.length;
    const thick = Math.max(1.5, Math.min(36, step * 0.72));
    const room = HEIGHT - TOP - FOOT;
    setProps(this.drawing, { viewBox: `0 0 ${width} ${HEIGHT}` });
    const every = Math.max(1, Math.ceil(46 / step));
    this.drawing.replaceChildren(
      svg("line.base", { x1: 0, x2: width, y1: TOP + room, y2: TOP + room }),
      ...days.map((day, at) => this.#createBar(day, { x: at * step, step, thick, room, max })),
      ...days.map((day, at) => ((days.length - 1 - at) % every
        ? null
        : svg("text", {
          x: Math.min(width - 20, Math.max(20, (at + 0.5) * step)), y: HEIGHT - 4,
        }, day.short))).filter(Boolean));
    this.#describe();
  }

  #createBar(day, { x, step, thick, room, max }) {
    const value = this.#getValue(day);
    const height = value ? Math.max(2, (value / max) * room) : 0;
    const mark = value == null && day.tasks ? svg("text.unknown", { x: x + step / 2, y: TOP + room - 4 }, "?") : null;
    const node = svg("g.day", svg("rect.hit", { x, y: 0, width: step, height: TOP + room }),
      svg("rect.bar-day",
        { x: x + (step - thick) / 2, y: TOP + room - height, width: thick, height, rx: Math.min(2, thick / 3) }),
      mark);
    node.addEventListener("pointerenter", () => this.#describe(day));
    return node;
  }

  #describe(day) {
    const all = this.#days.map(this.#getValue).filter((value) => value != null);
    const sum = all.length ? all.reduce((a, b) => a + b, 0) : null;
    setText(this.caption,
      day ? `${day.long}: ${this.#formatValue(this.#getValue(day), day)}`
        : `${this.#days.length} days: ${this.#formatValue(sum, null)}`);
  }
}

customElements.define("mw-bars", DayBars);
