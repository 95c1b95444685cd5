// Keyboard shortcuts: `g` and a letter open a page, a single letter runs an action. Keys in a field are no shortcuts.

import { h } from "./dom.js";

const MAX_PAUSE = 1500; // milliseconds between the two keys of one shortcut
const actions = new Map();
let prefixTime = -Infinity; // when `g` was pressed, by the event's own clock: a busy page handles events late

/** Add a shortcut for `keys` such as "n" or "g t". The help shows the description. Returns a function that removes the
 * shortcut and restores the one before it. */
export function addShortcut(keys, description, action) {
  const before = actions.get(keys);
  actions.set(keys, { description, action });
  return () => (before ? actions.set(keys, before) : actions.delete(keys));
}

/** Move the focus from `current` to the next or previous node. Returns whether there is one. */
export function moveFocus(nodes, current, by) {
  const at = nodes.indexOf(current);
  const next = nodes[at < 0 ? (by > 0 ? 0 : nodes.length - 1) : at + by];
  next?.focus();
  return Boolean(next);
}

/** Move the focus along the rows of the page. */
function moveRow(by) {
  const rows = [...document.querySelectorAll("main a.row, main .log-line")].filter((row) => row.checkVisibility());
  return moveFocus(rows, document.activeElement, by);
}

addShortcut("j", "Next row", () => moveRow(1));
addShortcut("k", "Previous row", () => moveRow(-1));

const findInput = (target) => target.closest?.("input, textarea, select, [contenteditable]");

document.addEventListener("keydown", (pressed) => {
  if (pressed.ctrlKey || pressed.metaKey || pressed.altKey || pressed.isComposing) return;
  if (pressed.key === "Escape" && findInput(pressed.target)) return pressed.target.blur();
  if (findInput(pressed.target) || document.querySelector("dialog[open]")) return;
  const keys = pressed.timeStamp - prefixTime < MAX_PAUSE ? `g ${pressed.key}` : pressed.key;
  prefixTime = keys === "g" ? pressed.timeStamp : -Infinity;
  if (keys === "g") return;
  const entry = actions.get(keys);
  if (entry && entry.action() !== false) pressed.preventDefault();
});

/** Show all shortcuts in a dialog. */
export function showHelp() {
  const rows = [
    ...[...actions].map(([keys, { description }]) => [keys, description]),
    ["Ctrl Enter", "Submit a form or send a message"],
    ["Esc", "Leave a field or close a dialog"],
  ].map(([keys, text]) =>
    h("div.key-row", h("dt", keys.split(" ").map((key) => h("kbd", key))), h("dd", text)));
  const dialog = h("dialog.dialog.help", { onclose: () => dialog.remove() },
    h("form", { method: "dialog" },
      h("h2", "Keyboard shortcuts"),
      h("dl.keys", rows),
      h("div.dialog-buttons", h("button", { type: "submit", autofocus: true }, "Close"))));
  dialog.addEventListener("click", (clicked) => clicked.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}
