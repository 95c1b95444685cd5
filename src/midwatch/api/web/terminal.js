// The terminal of a session: what it shows, and keys for it, over the routes that clients of agentapi use.

import { post } from "./api.js";
import { desk } from "./desk.js";
import { h, say } from "./dom.js";
import { icon } from "./icons.js";
import { toast } from "./parts.js";
import { surface } from "./place.js";
import { frames } from "./stream.js";

const AGAIN = 1500;
const KEYS = {
  ArrowUp: "\x1b[A", ArrowDown: "\x1b[B", ArrowRight: "\x1b[C", ArrowLeft: "\x1b[D", Home: "\x1b[H", End: "\x1b[F",
  PageUp: "\x1b[5~", PageDown: "\x1b[6~", Delete: "\x1b[3~", Escape: "\x1b", Enter: "\r", Backspace: "\x7f",
};
const BUTTONS = [
  ["Esc", "\x1b", "Escape"], ["Tab", "\t", "Tab"], ["⇧Tab", "\x1b[Z", "Shift Tab"], ["↑", KEYS.ArrowUp, "Up"],
  ["↓", KEYS.ArrowDown, "Down"],
  ["←", KEYS.ArrowLeft, "Left"], ["→", KEYS.ArrowRight, "Right"], ["Enter", "\r", "Enter"],
  ["Ctrl C", "\x03", "Control C"],
];

/** What a key is for a program in a terminal, or nothing. Tab stays the browser's, as there has to be a way out. */
function keysOf({ key, ctrlKey, altKey, metaKey }) {
  if (metaKey || key === "Tab") return null;
  if (ctrlKey)
    return /^[a-z]$/i.test(key) && !altKey ? String.fromCharCode(key.toLowerCase().charCodeAt(0) - 96) : null;
  const made = KEYS[key] ?? ([...key].length === 1 ? key : null);
  return made && altKey ? `\x1b${made}` : made;
}

/** The panel. `follow(signal)` has it live until it is stopped. */
export function terminalPanel(key) {
  const screen = h("pre.terminal-screen",
    { tabindex: "0", role: "application", "aria-label": "Terminal: keys that are pressed here go to the agent" });
  let waiting = "";
  let sending = false;
  /** Keys arrive in the order they were pressed in, those that are pressed meanwhile together. */
  const press = async (keys) => {
    waiting += keys;
    if (sending || !desk.may.act) return;
    sending = true;
    try {
      while (waiting) {
        const content = waiting;
        waiting = "";
        await post("/message", { content, type: "raw" }, { from: surface(key) });
      }
    } catch (problem) {
      waiting = "";
      toast(problem.message, "bad");
    } finally {
      sending = false;
    }
  };
  screen.addEventListener("keydown", (pressed) => {
    pressed.stopPropagation(); // no shortcut of the page
    const keys = pressed.isComposing || (pressed.ctrlKey && pressed.key === "c" && String(getSelection()))
      ? null
      : keysOf(pressed);
    if (!keys) return;
    pressed.preventDefault();
    press(keys);
  });
  screen.addEventListener("paste", (pasted) => {
    pasted.preventDefault();
    press(pasted.clipboardData.getData("text").replace(/\r?\n/g, "\r"));
  });
  const buttons = BUTTONS.map(([label, keys, name]) =>
    h("button.small", { type: "button", "aria-label": name, onclick: () => press(keys) }, label));
  const node = h("section.panel.terminal-panel", { "aria-label": "Terminal" }, screen,
    h("div.terminal-keys.acts", buttons));
  const follow = async (signal) => {
    while (!signal.aborted) {
      try {
        const reply = await fetch(`${surface(key)}/internal/screen`,
          { signal, cache: "no-store", headers: { accept: "text/event-stream" } });
        if (reply.ok) for await (const { name, data } of frames(reply)) if (name === "screen") say(screen, data.screen);
      } catch {
        // let go, or cut off: then again
      }
      if (!signal.aborted) await new Promise((resolve) => { setTimeout(resolve, AGAIN); });
    }
  };
  return { node, follow };
}

/** A button that gives the agent a file: the message names where it is. */
export function attachButton(key, input) {
  const file = h("input.visually-hidden", { type: "file", tabindex: "-1", "aria-label": "A file for the agent" });
  file.addEventListener("change", async () => {
    const form = new FormData();
    form.append("file", file.files[0]);
    file.value = "";
    try {
      const { filePath } = await post("/upload", undefined, { form, from: surface(key) });
      const { length } = input.value.trimEnd();
      // the cursor of who writes on stays
      input.setRangeText(`${length ? " " : ""}@"${filePath}"`, length, input.value.length);
      input.focus();
    } catch (problem) {
      toast(problem.message, "bad");
    }
  });
  const button = h("button",
    { type: "button", title: "Attach a file", "aria-label": "Attach a file", onclick: () => file.click() },
    icon("attach"));
  return [file, button];
}
