// The next 24 hours as a strip: a lane for each automation, a mark for each run, a line for now.

import { cut, h, keyed, say, set, svg } from "./dom.js";
import { clockTime, dateTime, everySecond, moment, now } from "./time.js";

const HOUR = 3600000;
const BEFORE = HOUR;
const AHEAD = 24 * HOUR;
const AXIS = 20;
const LANE = 24;
const MOST_LANES = 16;
const LISTED = 8;
const OF_ONE = 2; // so that a frequent one does not hide the others

class DayStrip extends HTMLElement {
  #lanes = [];
  #drawn = 0;

  connectedCallback() {
    this.axis = svg("g.axis");
    this.rows = svg("g");
    this.line = svg("g.now-line", svg("line"), svg("text", { y: 12 }, "now"));
    this.drawing = svg("svg.strip",
      { role: "img", "aria-label": "Runs of the next 24 hours; they are listed beside it" }, this.axis, this.rows,
      this.line);
    this.list = h("ol.strip-list", { "aria-label": "Next runs" });
    this.more = h("p.faint", { hidden: true });
    this.replaceChildren(h("div.strip-frame", this.drawing, this.more), this.list);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.drawing);
    this.stop = everySecond(() => Date.now() - this.#drawn > 15000 && this.draw());
  }

  disconnectedCallback() {
    this.stop?.();
    this.resized?.disconnect();
  }

  /** Lanes are { id, name, ahead, behind }: moments to come, and runs that were. */
  show(lanes) {
    this.#lanes = lanes;
    if (this.isConnected) this.draw();
  }

  draw() {
    const width = this.drawing.clientWidth;
    if (!width) return;
    this.#drawn = Date.now();
    const all = this.#lanes.filter((lane) => lane.ahead.length || lane.behind.some((run) => run.at >= now() - BEFORE));
    const lanes = all.slice(0, MOST_LANES);
    this.more.hidden = all.length <= MOST_LANES;
    say(this.more, `and ${all.length - MOST_LANES} more that are not drawn`);
    const label = width < 480 ? 84 : 168;
    const from = now() - BEFORE;
    const place = (at) => label + ((at - from) / (BEFORE + AHEAD)) * (width - label - 8);
    const height = AXIS + Math.max(1, lanes.length) * LANE;
    set(this.drawing, { height, viewBox: `0 0 ${width} ${height}` });
    this.#drawAxis(from, place, height, width - label);
    keyed(this.rows, lanes, (lane) => lane.id, (lane) => this.#lane(lane),
      (node, lane) => this.#update(node, lane, lanes.indexOf(lane), { from, place, label, width }));
    const x = place(now());
    set(this.line.firstChild, { x1: x, x2: x, y1: AXIS - 4, y2: height });
    set(this.line.lastChild, { x });
    this.#drawList();
  }

  #drawAxis(from, place, height, room) {
    const step = room < 300 ? 6 : room < 620 ? 3 : 2;
    const first = new Date(now());
    first.setMinutes(0, 0, 0);
    const hours = [];
    for (let hour = 1; hour <= 24; hour += 1) {
      const at = first.getTime() + hour * HOUR;
      if (new Date(at).getHours() % step === 0 && at > now() + (BEFORE * step) / 2 && at < now() + AHEAD - HOUR / 2)
        hours.push(at);
    }
    this.axis.replaceChildren(...hours.map((at) => svg("g",
      svg("line", { x1: place(at), x2: place(at), y1: AXIS - 4, y2: height }),
      svg("text", { x: place(at), y: 12 }, `${String(new Date(at).getHours()).padStart(2, "0")}:00`))));
  }

  #lane(lane) {
    const node = svg("g");
    node.name = svg("text.lane-name", { y: 16 });
    node.base = svg("line.lane-line", { y1: 12, y2: 12 });
    node.marks = svg("g");
    node.append(node.name, node.base, node.marks);
    node.dataset.lane = lane.id;
    return node;
  }

  #update(node, lane, at, { from, place, label, width }) {
    set(node, { transform: `translate(0 ${AXIS + at * LANE})` });
    const letters = Math.floor((label - 12) / 6.2);
    node.name.textContent = cut(lane.name, letters);
    set(node.base, { x1: label, x2: width - 8 });
    const most = Math.max(1.5, Math.min(4, (0.6 * (width - label)) / (lane.ahead.length + 1)));
    const behind = lane.behind
      .filter((run) => run.at >= from)
      .map((run) => mark(place(run.at), 4, `mark was ${run.status}`, `${moment(run.at)}: ${run.status}`));
    const ahead = lane.ahead
      .filter((time) => time >= now() - 60000 && time <= now() + AHEAD)
      .map((time) => mark(place(time), most, "mark", moment(time)));
    node.marks.replaceChildren(...behind, ...ahead);
  }

  #drawList() {
    const all = this.#lanes
      .flatMap((lane) => lane.ahead.slice(0, OF_ONE).map((at) => ({ at, lane })))
      .sort((a, b) => a.at - b.at)
      .slice(0, LISTED);
    const wanted = all.map(({ at, lane }) => ({ key: `${lane.id}@${at}`, at, lane }));
    keyed(this.list, wanted, (one) => one.key, ({ at, lane }) => h("li",
      h("a.row.strip-row", { href: `/automations/${lane.id}` },
        h("time.num", { dateTime: new Date(at).toISOString(), title: dateTime(at) }, clockTime(at)),
        h("span.cut", lane.name))));
  }
}

const mark = (x, width, kind, title) =>
  svg("rect", { class: kind, x: x - width / 2, y: 5, width, height: 14, rx: width / 2 }, svg("title", title));

customElements.define("mw-day", DayStrip);
