// The terminal of a session: its screen and its keys, over the agentapi routes.

import { post } from "./api.js";
import { desk } from "./desk.js";
import { h, setText } from "./dom.js";
import { icon } from "./icons.js";
import { showToast } from "./parts.js";
import { getAgentApiPath } from "./place.js";
import { readFrames } from "./stream.js";

const RETRY_PAUSE = 1500;
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

/** Translate a key press for a program in a terminal, or return null. Tab stays with the browser, so that users can
 * leave the terminal. */
function translateKey({ key, ctrlKey, altKey, metaKey }) {
  if (metaKey || key === "Tab") return null;
  if (ctrlKey)
    return /^[a-z]$/i.test(key) && !altKey ? String.fromCharCode(key.toLowerCase().charCodeAt(0) - 96) : null;
  const sequence = KEYS[key] ?? ([...key].length === 1 ? key : null);
  return sequence && altKey ? `\x1b${sequence}` : sequence;
}

/** Create the terminal panel. `follow(signal)` updates it until the signal aborts. */
export function createTerminal(key) {
  const screen = h("pre.terminal-screen",
    { tabindex: "0", role: "application", "aria-label": "Terminal: keys pressed here are sent to the agent" });
  let waiting = "";
  let sending = false;
  /** Send keys in order; keys pressed while a request is running are sent together. */
  const sendKeys = async (keys) => {
    waiting += keys;
    if (sending || !desk.may.act) return;
    sending = true;
    try {
      while (waiting) {
        const content = waiting;
        waiting = "";
        await post("/message", { content, type: "raw" }, { from: getAgentApiPath(key) });
      }
    } catch (problem) {
      waiting = "";
      showToast(problem.message, "bad");
    } finally {
      sending = false;
    }
  };
  screen.addEventListener("keydown", (pressed) => {
    pressed.stopPropagation(); // no shortcut of the page
    const keys = pressed.isComposing || (pressed.ctrlKey && pressed.key === "c" && String(getSelection()))
      ? null
      : translateKey(pressed);
    if (!keys) return;
    pressed.preventDefault();
    sendKeys(keys);
  });
  screen.addEventListener("paste", (pasted) => {
    pasted.preventDefault();
    sendKeys(pasted.clipboardData.getData("text").replace(/\r?\n/g, "\r"));
  });
  const buttons = BUTTONS.map(([label, keys, name]) =>
    h("button.small", { type: "button", "aria-label": name, onclick: () => sendKeys(keys) }, label));
  const node = h("section.panel.terminal-panel", { "aria-label": "Terminal" }, screen,
    h("div.terminal-keys.action", buttons));
  const follow = async (signal) => {
    while (!signal.aborted) {
      try {
        const reply = await fetch(`${getAgentApiPath(key)}/internal/screen`,
          { signal, cache: "no-store", headers: { accept: "text/event-stream" } });
        if (reply.ok) for await (const { name, data } of readFrames(reply)) if (name === "screen") setText(screen,
          data.screen);
      } catch {
        // closed on purpose or broken: connect again below
      }
      if (!signal.aborted) await new Promise((resolve) => { setTimeout(resolve, RETRY_PAUSE); });
    }
  };
  return { node, follow };
}

/** Create a button that uploads a file and adds its path to the message. */
export function createAttachButton(key, input) {
  const file = h("input.visually-hidden", { type: "file", tabindex: "-1", "aria-label": "File for the agent" });
  file.addEventListener("change", async () => {
    const form = new FormData();
    form.append("file", file.files[0]);
    file.value = "";
    try {
      const { filePath } = await post("/upload", undefined, { form, from: getAgentApiPath(key) });
      const { length } = input.value.trimEnd();
      // this keeps the cursor of a user who is typing
      input.setRangeText(`${length ? " " : ""}@"${filePath}"`, length, input.value.length);
      input.focus();
    } catch (problem) {
      showToast(problem.message, "bad");
    }
  });
  const button = h("button",
    { type: "button", title: "Attach a file", "aria-label": "Attach a file", onclick: () => file.click() },
    icon("attach"));
  return [file, button];
}
