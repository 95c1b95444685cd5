// A bar for each day. Plain SVG; the table beside it says the same in words.

import { h, say, set, svg } from "./dom.js";

const HEIGHT = 132;
const TOP = 14;
const FOOT = 18;

/** A chart that is drawn again when its room changes. `show(days, of, text)`: what each day counts, and how it
 * reads. */
class DayBars extends HTMLElement {
  #days = [];
  #of = () => null;
  #text = String;

  connectedCallback() {
    this.drawing = svg("svg.bars", { role: "img", height: HEIGHT });
    this.tell = h("p.bars-tell.dim.num", "");
    this.replaceChildren(this.drawing, this.tell);
    this.drawing.addEventListener("pointerleave", () => this.#say());
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.drawing);
  }

  disconnectedCallback() {
    this.resized?.disconnect();
  }

  show(days, of, text, label) {
    [this.#days, this.#of, this.#text] = [days, of, text];
    this.drawing.setAttribute("aria-label", label);
    this.draw();
  }

  draw() {
    const width = this.drawing.clientWidth;
    const days = this.#days;
    if (!width || !days.length) return;
    const most = Math.max(...days.map((one) => this.#of(one) ?? 0));
    const step = width / days.length;
    const thick = Math.max(1.5, Math.min(36, step * 0.72));
    const room = HEIGHT - TOP - FOOT;
    set(this.drawing, { viewBox: `0 0 ${width} ${HEIGHT}` });
    const every = Math.max(1, Math.ceil(46 / step));
    this.drawing.replaceChildren(
      svg("line.base", { x1: 0, x2: width, y1: TOP + room, y2: TOP + room }),
      ...days.map((one, at) => this.#bar(one, { x: at * step, step, thick, room, most })),
      ...days.map((one, at) => ((days.length - 1 - at) % every
        ? null
        : svg("text", {
          x: Math.min(width - 20, Math.max(20, (at + 0.5) * step)), y: HEIGHT - 4,
        }, one.short))).filter(Boolean));
    this.#say();
  }

  #bar(one, { x, step, thick, room, most }) {
    const value = this.#of(one);
    const height = value ? Math.max(2, (value / most) * room) : 0;
    const mark = value == null && one.tasks ? svg("text.unknown", { x: x + step / 2, y: TOP + room - 4 }, "?") : null;
    const node = svg("g.day", svg("rect.hit", { x, y: 0, width: step, height: TOP + room }),
      svg("rect.bar-day",
        { x: x + (step - thick) / 2, y: TOP + room - height, width: thick, height, rx: Math.min(2, thick / 3) }),
      mark);
    node.addEventListener("pointerenter", () => this.#say(one));
    return node;
  }

  #say(one) {
    const all = this.#days.map(this.#of).filter((value) => value != null);
    const sum = all.length ? all.reduce((a, b) => a + b, 0) : null;
    say(this.tell,
      one ? `${one.long}: ${this.#text(this.#of(one), one)}` : `${this.#days.length} days: ${this.#text(sum, null)}`);
  }
}

customElements.define("mw-bars", DayBars);
