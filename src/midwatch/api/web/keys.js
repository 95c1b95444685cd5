// Keyboard shortcuts: `g` and a letter goes to a page, single letters act. Typing in a field is never a shortcut.

import { h } from "./dom.js";

const TOGETHER = 1500; // between two keys that belong together, at most
const actions = new Map();
let begun = -Infinity; // when `g` was pressed, by the clock of the keyboard: the page may be slow to hear of it

/** `keys` such as "n" or "g t". The description is shown in the help. Returns how to remove it, which gives back what
 * the keys did before. */
export function shortcut(keys, description, action) {
  const before = actions.get(keys);
  actions.set(keys, { description, action });
  return () => (before ? actions.set(keys, before) : actions.delete(keys));
}

/** Move the focus along the rows of the page. */
function step(by) {
  const rows = [...document.querySelectorAll("main a.row, main .log-line")].filter((row) => row.checkVisibility());
  const at = rows.indexOf(document.activeElement);
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
  next?.focus();
  return Boolean(next);
}

shortcut("j", "Next row", () => step(1));
shortcut("k", "Row before", () => step(-1));

const typing = (target) => target.closest?.("input, textarea, select, [contenteditable]");

document.addEventListener("keydown", (pressed) => {
  if (pressed.ctrlKey || pressed.metaKey || pressed.altKey || pressed.isComposing) return;
  if (pressed.key === "Escape" && typing(pressed.target)) return pressed.target.blur();
  if (typing(pressed.target) || document.querySelector("dialog[open]")) return;
  const keys = pressed.timeStamp - begun < TOGETHER ? `g ${pressed.key}` : pressed.key;
  begun = keys === "g" ? pressed.timeStamp : -Infinity;
  if (keys === "g") return;
  const found = actions.get(keys);
  if (found && found.action() !== false) pressed.preventDefault();
});

/** The list of all shortcuts, as a dialog. */
export function showHelp() {
  const rows = [...actions].map(([keys, { description }]) =>
    h("div.key-row", h("dt", keys.split(" ").map((key) => h("kbd", key))), h("dd", description)));
  const more = [
    ["Ctrl Enter", "Submit a task, send a message"], ["Esc", "Leave a field, close a dialog"],
  ].map(([keys, text]) =>
    h("div.key-row", h("dt", keys.split(" ").map((key) => h("kbd", key))), h("dd", text)));
  const dialog = h("dialog.dialog.help", { onclose: () => dialog.remove() },
    h("form", { method: "dialog" },
      h("h2", "Keyboard"),
      h("dl.keys", rows, more),
      h("div.dialog-buttons", h("button", { type: "submit", autofocus: true }, "Close"))));
  dialog.addEventListener("click", (clicked) => clicked.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}
