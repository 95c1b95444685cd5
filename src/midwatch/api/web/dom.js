// Making and changing elements. All text goes in as text; `html` is for what the server has sanitised.

const SVG = "http://www.w3.org/2000/svg";

/** h("button.primary", {onclick}, "Save"): an element with classes, properties and children. */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name || "div");
  if (classes.length) node.className = classes.join(" ");
  return fill(node, props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElementNS(SVG, name);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  return fill(node, props, children);
}

function fill(node, props, children) {
  if (isChild(props)) children = [props, ...children];
  else set(node, props);
  node.append(...children.flat(3).filter(present));
  return node;
}

const present = (child) => child !== null && child !== undefined && child !== false;
const isChild = (value) =>
  typeof value === "string" || typeof value === "number" || value instanceof Node || Array.isArray(value);

/** Set properties: on* listeners, `class` adds, `data` goes to the dataset, the rest are properties or attributes. */
export function set(node, props) {
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

/** Write text only where it differs, so that nothing is laid out again for nothing. */
export function say(node, text) {
  const wanted = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
  return node;
}

/** Insert HTML that the server has rendered and sanitised. Nothing else may be given to it. */
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

/** Keep the children of `list` equal to `items`: nodes are kept by key, updated in place and moved only if they
 * must. */
export function keyed(list, items, key, make, update) {
  const known = (list.keyedNodes ??= new Map());
  const wanted = new Set(items.map(key));
  for (const [id, node] of known) {
    if (!wanted.has(id)) {
      node.remove();
      known.delete(id);
    }
  }
  let place = list.firstElementChild;
  for (const item of items) {
    const id = key(item);
    let node = known.get(id);
    if (!node) {
      node = make(item);
      known.set(id, node);
    }
    update?.(node, item);
    if (node === place) place = place.nextElementSibling;
    else list.insertBefore(node, place);
  }
}

/** The same for rows of one height: each is put in its place by a transform, so that nothing else is laid out again
 * when one comes or moves, and the others glide. The style sheet says the height, as --h. */
export function placed(list, items, key, make, update) {
  keyed(list, items, key, make, update);
  list.classList.add("placed");
  list.style.setProperty("--n", items.length);
  items.forEach((item, at) => list.keyedNodes.get(key(item)).style.setProperty("--i", at));
}

/** Children of any height, put in their places by transforms: when one goes or grows the others glide, and nothing is
 * laid out again. Returns what to call when children came or went. */
export function stacked(list) {
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

/** Call `draw` at most once per frame, however often it is asked for. A hidden page draws when it is seen again. */
export function perFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** A text that is not longer than `length`; no character of it is cut in two. */
export const cut = (text, length) =>
  (text.length > length ? `${text.slice(0, length - 1).replace(/[\ud800-\udbff]$/, "")}…` : text);

/** The first line of a text, for lists and titles. */
export const firstLine = (text, length = 160) => cut((text ?? "").trim().split("\n", 1)[0], length);

/** A random name for a wish, so that sending it twice does it once. */
export function wishKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
