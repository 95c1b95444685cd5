// The drawing of a chain: boxes for automations that start after each other, from left to right, with lines between.
// A narrow screen shows them from top to bottom.

import { h, setText, svg } from "./dom.js";
import { formatDateTime } from "./time.js";

const WIDTH = 156, HEIGHT = 54, GAP_X = 48, GAP_Y = 14, GAP_DOWN = 34, EDGE = 2;
const narrow = matchMedia("(max-width: 47.9rem)");
const STATUS = { ok: "done", skipped: "closed" };

/** Return the place of each node: its column is its level, and its row follows those of the nodes before it. */
export function placeNodes(nodes, isNarrow) {
  const columns = [];
  const rows = new Map();
  for (const node of nodes) (columns[node.level] ??= []).push(node);
  for (const column of columns.filter(Boolean)) {
    const wish = (node) => {
      const before = node.after.map((id) => rows.get(id)).filter((row) => row !== undefined);
      return before.length ? before.reduce((sum, row) => sum + row, 0) / before.length : 0;
    };
    column.sort((one, other) => wish(one) - wish(other));
    column.forEach((node, index) => rows.set(node.id, Math.max(index, index ? rows.get(column[index - 1].id) + 1 : 0)));
  }
  return new Map(nodes.map((node) => [node.id, isNarrow
    ? { x: EDGE + rows.get(node.id) * (WIDTH + GAP_Y), y: EDGE + node.level * (HEIGHT + GAP_DOWN) }
    : { x: EDGE + node.level * (WIDTH + GAP_X), y: EDGE + rows.get(node.id) * (HEIGHT + GAP_Y) }]));
}

/** Draw a chain into an element. The automation of the page is marked. */
export function drawChain(place, nodes, current) {
  const isNarrow = narrow.matches;
  const places = placeNodes(nodes, isNarrow);
  const width = Math.max(...[...places.values()].map(({ x }) => x)) + WIDTH + EDGE;
  const height = Math.max(...[...places.values()].map(({ y }) => y)) + HEIGHT + EDGE;
  const lines = nodes.flatMap((node) => node.after.filter((id) => places.has(id)).map((id) => {
    return svg("path.chain-line", { d: drawLine(places.get(id), places.get(node.id), isNarrow) });
  }));
  const drawing = svg("svg", { width, height, "aria-hidden": "true" }, ...lines);
  const frame = h("div.chain", { role: "list", "aria-label": "Chain of automations" }, drawing,
    ...nodes.map((node) => createNode(node, places.get(node.id), node.id === current)));
  frame.style.width = `${width}px`;
  frame.style.height = `${height}px`;
  place.replaceChildren(frame);
}

function drawLine(from, to, isNarrow) {
  if (isNarrow) {
    const x1 = from.x + WIDTH / 2, y1 = from.y + HEIGHT, x2 = to.x + WIDTH / 2, y2 = to.y;
    return `M${x1} ${y1}C${x1} ${y1 + 20} ${x2} ${y2 - 20} ${x2} ${y2}`;
  }
  const x1 = from.x + WIDTH, y1 = from.y + HEIGHT / 2, x2 = to.x, y2 = to.y + HEIGHT / 2;
  return `M${x1} ${y1}C${x1 + 24} ${y1} ${x2 - 24} ${y2} ${x2} ${y2}`;
}

function createNode(node, { x, y }, isCurrent) {
  const { last } = node;
  const status = h("span.status", { data: { status: last ? STATUS[last.outcome] ?? last.outcome : "pending" } });
  const paused = node.status === "active" ? "" : ` (${node.status})`;
  setText(status, `${last ? last.outcome : "no run yet"}${paused}`);
  const box = h("a.chain-node", { href: `/automations/${node.id}`, "aria-current": isCurrent ? "page" : null },
    h("b.truncate", node.title), status);
  box.title = [node.title, ...node.starts, last?.why, last?.at && formatDateTime(last.at)].filter(Boolean).join("\n");
  const item = h("div.chain-place", { role: "listitem" }, box);
  item.style.left = `${x}px`;
  item.style.top = `${y}px`;
  return item;
}
