// Creating and changing elements. All text is inserted as text; HTML comes only from the server, which sanitises it.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with classes, properties and children: h("button.primary", { onclick }, "Save"). */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name || "div");
  if (classes.length) node.className = classes.join(" ");
  return fillNode(node, props, children);
}

/** Create an SVG element in the same way. */
export function svg(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElementNS(SVG, name);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  return fillNode(node, props, children);
}

function fillNode(node, props, children) {
  if (isChild(props)) children = [props, ...children];
  else setProps(node, props);
  node.append(...children.flat(3).filter(isPresent));
  return node;
}

const isPresent = (child) => child !== null && child !== undefined && child !== false;
const isChild = (value) =>
  typeof value === "string" || typeof value === "number" || value instanceof Node || Array.isArray(value);

/** Set properties: on* adds listeners, `class` adds classes, `data` fills the dataset, others are set as they are. */
export function setProps(node, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name.startsWith("on") && typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (name === "class") node.classList.add(...String(value).split(" ").filter(Boolean));
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name in node && !(node instanceof SVGElement) && name !== "list" && name !== "form")
      node[name] = value ?? "";
    else if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : value);
  }
  return node;
}

/** Set the text only if it differs, so that the browser lays out nothing again without need. */
export function setText(node, text) {
  const newText = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== newText) node.textContent = newText;
  return node;
}

/** Insert HTML that the server has rendered and sanitised. Never call it with anything else. */
export function insertSanitised(node, html) {
  const template = document.createElement("template");
  template.innerHTML = html ?? "";
  node.replaceChildren(template.content);
  for (const table of node.querySelectorAll("table")) {
    const frame = h("div.scroll-x");
    table.replaceWith(frame);
    frame.append(table);
  }
  return node;
}

/** Make the children of `list` match `items`. Nodes are kept by key, updated in place and moved only if necessary. */
export function renderKeyed(list, items, key, make, update) {
  const nodes = (list.keyedNodes ??= new Map());
  const keys = new Set(items.map(key));
  for (const [id, node] of nodes) {
    if (!keys.has(id)) {
      node.remove();
      nodes.delete(id);
    }
  }
  let place = list.firstElementChild;
  for (const item of items) {
    const id = key(item);
    let node = nodes.get(id);
    if (!node) {
      node = make(item);
      nodes.set(id, node);
    }
    update?.(node, item);
    if (node === place) place = place.nextElementSibling;
    else list.insertBefore(node, place);
  }
}

/** Do the same for rows of equal height. A transform positions each row, so that a new or moved row causes no other
 * layout and the others slide. The style sheet sets the height as --h. */
export function renderRows(list, items, key, make, update) {
  renderKeyed(list, items, key, make, update);
  list.classList.add("placed");
  list.style.setProperty("--n", items.length);
  items.forEach((item, at) => list.keyedNodes.get(key(item)).style.setProperty("--i", at));
}

/** Position children of any height by transforms, so that the others slide when one leaves or grows. Returns a function
 * to call after children were added or removed. */
export function stackChildren(list) {
  const place = () => {
    let y = 0;
    for (const node of list.children) {
      node.style.setProperty("--y", `${y}px`);
      y += node.offsetHeight;
    }
    list.style.setProperty("--height", `${y}px`);
  };
  const watch = new ResizeObserver(place);
  list.classList.add("stacked");
  return () => {
    watch.disconnect();
    for (const node of list.children) watch.observe(node);
    place();
  };
}

/** A drawing that redraws itself when the width of the observed node changes. `stop` may end a timer. */
export class Chart extends HTMLElement {
  #observer = new ResizeObserver(() => this.draw());

  observe(node) {
    this.#observer.observe(node);
  }

  disconnectedCallback() {
    this.stop?.();
    this.#observer.disconnect();
  }
}

/** Return whether an element is scrolled to its end, within some pixels. */
export const isScrolledToEnd = (node, distance = 40) =>
  node.scrollHeight - node.scrollTop - node.clientHeight < distance;

/** Limit `draw` to one call per frame, however often the returned function is called. A hidden page draws when it is
 * visible again. */
export function limitToFrame(draw) {
  let isScheduled = false;
  return () => {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      draw();
    });
  };
}

/** Shorten a text to at most `length`, without splitting a character. */
export const truncate = (text, length) =>
  (text.length > length ? `${text.slice(0, length - 1).replace(/[\ud800-\udbff]$/, "")}…` : text);

/** Return the first line of a text, for lists and titles. */
export const getFirstLine = (text, length = 160) => truncate((text ?? "").trim().split("\n", 1)[0], length);

/** Return a random idempotency key, so that a request that is sent twice has one effect. */
export function createRequestKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
