// A chart of the next 24 hours: a lane for each automation, a mark for each run, a line for now.

import { Chart, h, renderKeyed, setProps, setText, svg, truncate } from "./dom.js";
import { callEverySecond, formatClock, formatDateTime, formatMoment, now } from "./time.js";

const HOUR = 3600000;
const BEFORE = HOUR;
const AHEAD = 24 * HOUR;
const AXIS = 20;
const LANE = 24;
const MAX_LANES = 16;
const MAX_LISTED = 8;
const MAX_PER_AUTOMATION = 2; // so that a frequent automation does not hide the others

class DayStrip extends Chart {
  #lanes = [];
  #drawn = 0;

  connectedCallback() {
    this.axis = svg("g.axis");
    this.rows = svg("g");
    this.line = svg("g.now-line", svg("line"), svg("text", { y: 12 }, "now"));
    this.drawing = svg("svg.strip",
      { role: "img", "aria-label": "Runs in the next 24 hours; the list next to it has the same runs" }, this.axis,
      this.rows,
      this.line);
    this.list = h("ol.strip-list", { "aria-label": "Next runs" });
    this.more = h("p.faint", { hidden: true });
    this.replaceChildren(h("div.strip-frame", this.drawing, this.more), this.list);
    this.observe(this.drawing);
    this.stop = callEverySecond(() => Date.now() - this.#drawn > 15000 && this.draw());
  }

  /** Show lanes: { id, name, ahead, behind } with times of coming runs and past runs. */
  show(lanes) {
    this.#lanes = lanes;
    if (this.isConnected) this.draw();
  }

  draw() {
    const width = this.drawing.clientWidth;
    if (!width) return;
    this.#drawn = Date.now();
    const all = this.#lanes.filter((lane) => lane.ahead.length || lane.behind.some((run) => run.at >= now() - BEFORE));
    const lanes = all.slice(0, MAX_LANES);
    this.more.hidden = all.length <= MAX_LANES;
    setText(this.more, `and ${all.length - MAX_LANES} more automations`);
    const label = width < 480 ? 84 : 168;
    const from = now() - BEFORE;
    const place = (at) => label + ((at - from) / (BEFORE + AHEAD)) * (width - label - 8);
    const height = AXIS + Math.max(1, lanes.length) * LANE;
    setProps(this.drawing, { height, viewBox: `0 0 ${width} ${height}` });
    this.#drawAxis(from, place, height, width - label);
    renderKeyed(this.rows, lanes, (lane) => lane.id, (lane) => this.#createLane(lane),
      (node, lane) => this.#updateLane(node, lane, lanes.indexOf(lane), { from, place, label, width }));
    const x = place(now());
    setProps(this.line.firstChild, { x1: x, x2: x, y1: AXIS - 4, y2: height });
    setProps(this.line.lastChild, { x });
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

  #createLane(lane) {
    const node = svg("g");
    node.name = svg("text.lane-name", { y: 16 });
    node.base = svg("line.lane-line", { y1: 12, y2: 12 });
    node.marks = svg("g");
    node.append(node.name, node.base, node.marks);
    node.dataset.lane = lane.id;
    return node;
  }

  #updateLane(node, lane, at, { from, place, label, width }) {
    setProps(node, { transform: `translate(0 ${AXIS + at * LANE})` });
    const letters = Math.floor((label - 12) / 6.2);
    node.name.textContent = truncate(lane.name, letters);
    setProps(node.base, { x1: label, x2: width - 8 });
    const most = Math.max(1.5, Math.min(4, (0.6 * (width - label)) / (lane.ahead.length + 1)));
    const behind = lane.behind
      .filter((run) => run.at >= from)
      .map((run) => createMark(place(run.at), 4, `mark was ${run.status}`, `${formatMoment(run.at)}: ${run.status}`));
    const ahead = lane.ahead
      .filter((time) => time >= now() - 60000 && time <= now() + AHEAD)
      .map((time) => createMark(place(time), most, "mark", formatMoment(time)));
    node.marks.replaceChildren(...behind, ...ahead);
  }

  #drawList() {
    const all = this.#lanes
      .flatMap((lane) => lane.ahead.slice(0, MAX_PER_AUTOMATION).map((at) => ({ at, lane })))
      .sort((a, b) => a.at - b.at)
      .slice(0, MAX_LISTED);
    const runs = all.map(({ at, lane }) => ({ key: `${lane.id}@${at}`, at, lane }));
    renderKeyed(this.list, runs, (run) => run.key, ({ at, lane }) => h("li",
      h("a.row.strip-row", { href: `/automations/${lane.id}` },
        h("time.num", { dateTime: new Date(at).toISOString(), title: formatDateTime(at) }, formatClock(at)),
        h("span.truncate", lane.name))));
  }
}

const createMark = (x, width, kind, title) =>
  svg("rect", { class: kind, x: x - width / 2, y: 5, width, height: 14, rx: width / 2 }, svg("title", title));

customElements.define("mw-day", DayStrip);
