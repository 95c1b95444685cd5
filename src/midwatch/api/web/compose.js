// The form for messages. Each message leaves the box at once and is sent in order, so that the user can write the next
// one meanwhile. For a busy agent that accepts messages while it works, the user chooses when the agent receives them.

import { createRequestKey, h } from "./dom.js";
import { icon } from "./icons.js";
import { showToast, submitWithKey } from "./parts.js";

const MAX_HEIGHT = 240;
const MODES = {
  after_turn: ["After the turn", "The message waits in the queue"],
  interrupt: ["At next step", "The agent receives it as soon as possible"],
  after_tool: ["After the tool", "The agent receives it when the running tool has returned"],
};

/** Create the choice of when a busy agent receives a message. `mode()` returns the chosen one;
 * `offer(isOffered, hasRoom)` shows or hides the choice, or keeps room for it. */
function createModeChoice() {
  let chosen = "after_turn";
  const buttons = Object.entries(MODES)
    .map(([mode, [label, title]]) => h("button", { type: "button", title, "data-mode": mode }, label));
  const choose = (mode) => {
    chosen = mode;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.mode === mode));
  };
  for (const button of buttons)
    button.addEventListener("click", () => { choose(button.dataset.mode); node.dispatchEvent(new Event("change")); });
  const node = h("div.segments.small.modes.action",
    { role: "group", "aria-label": "When the agent receives it", hidden: true }, buttons);
  choose(chosen);
  return {
    node, mode: () => chosen,
    offer: (isOffered, hasRoom) => {
      if (!isOffered) choose("after_turn");
      node.hidden = !hasRoom;
      node.classList.toggle("idle", !isOffered);
    },
  };
}

/** Create the form with its box and button. `send(text, key, mode)` sends a message once for each key. If it fails, the
 * text returns to the box, before what was written meanwhile. */
export function createComposer(send) {
  const input = h("textarea",
    { name: "text", rows: 2, placeholder: "Write a message", "aria-label": "Message", "data-slash": "" });
  const button = h("button.primary", { type: "submit", title: "Send (Ctrl Enter)" }, icon("send"), h("span", "Send"));
  const modes = createModeChoice();
  const form = h("form.compose.action", input, button);
  const waiting = [];
  const resize = () => {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight + 2, MAX_HEIGHT)}px`;
  };
  const setInput = (text) => { input.value = text; resize(); };
  const sendAll = async () => {
    try {
      for (; waiting.length; waiting.shift()) await send(waiting[0].text, waiting[0].key, waiting[0].mode);
    } catch (problem) {
      setInput([...waiting.splice(0).map((message) => message.text),
        input.value].filter((text) => text.trim()).join("\n"));
      showToast(problem.message, "bad");
    }
  };
  const submit = () => {
    const text = input.value;
    if (!text.trim()) return;
    setInput("");
    if (waiting.push({ text, key: createRequestKey(), mode: modes.mode() }) === 1) sendAll();
  };
  form.addEventListener("submit", (submitted) => { submitted.preventDefault(); submit(); });
  submitWithKey(form);
  input.addEventListener("input", resize);
  return { form, input, button, modes };
}
