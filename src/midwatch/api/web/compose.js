// Where messages are written. Each is taken from the box at once and sent in its turn, so that one can write on while
// the one before is on its way. For a busy agent that hears messages while it works, one chooses when it is to hear
// them.

import { h, wishKey } from "./dom.js";
import { icon } from "./icons.js";
import { toast } from "./parts.js";

const TALLEST = 240;
const MODES = {
  after_turn: ["After the turn", "It waits in the queue"],
  interrupt: ["At its next step", "The agent hears it as soon as it can"],
  after_tool: ["After its tool", "The agent hears it when the tool it uses has returned"],
};

/** When a busy agent is to hear a message: `mode()` is the one chosen, `offer(wanted, room)` shows or hides the choice,
 * or keeps room for it. */
function modeChoice() {
  let chosen = "after_turn";
  const buttons = Object.entries(MODES)
    .map(([mode, [label, title]]) => h("button", { type: "button", title, "data-mode": mode }, label));
  const choose = (mode) => {
    chosen = mode;
    for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.mode === mode));
  };
  for (const one of buttons)
    one.addEventListener("click", () => { choose(one.dataset.mode); node.dispatchEvent(new Event("change")); });
  const node = h("div.segments.small.modes.acts",
    { role: "group", "aria-label": "When the agent hears it", hidden: true }, buttons);
  choose(chosen);
  return {
    node, mode: () => chosen,
    offer: (wanted, room) => {
      if (!wanted) choose("after_turn");
      node.hidden = !room;
      node.classList.toggle("idle", !wanted);
    },
  };
}

/** The form with its box and button. `send(text, wish, mode)` says something once for each wish; what it refuses is
 * given back to the box, before what was written meanwhile. */
export function composer(send) {
  const input = h("textarea",
    { name: "text", rows: 2, placeholder: "Write a message", "aria-label": "Message", "data-slash": "" });
  const button = h("button.primary", { type: "submit", title: "Send (Ctrl Enter)" }, icon("send"), h("span", "Send"));
  const modes = modeChoice();
  const form = h("form.compose.acts", input, button);
  const waiting = [];
  const fit = () => {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight + 2, TALLEST)}px`;
  };
  const write = (text) => { input.value = text; fit(); };
  const sendAll = async () => {
    try {
      for (; waiting.length; waiting.shift()) await send(waiting[0].text, waiting[0].wish, waiting[0].mode);
    } catch (problem) {
      write([...waiting.splice(0).map((one) => one.text), input.value].filter((one) => one.trim()).join("\n"));
      toast(problem.message, "bad");
    }
  };
  const submit = () => {
    const text = input.value;
    if (!text.trim()) return;
    write("");
    if (waiting.push({ text, wish: wishKey(), mode: modes.mode() }) === 1) sendAll();
  };
  form.addEventListener("submit", (sent) => { sent.preventDefault(); submit(); });
  input.addEventListener("input", fit);
  input.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) { pressed.preventDefault(); submit(); }
  });
  return { form, input, button, modes };
}
