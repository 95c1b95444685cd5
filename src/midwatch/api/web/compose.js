// Where messages are written. Each is taken from the box at once and sent in its turn, so that one can write on while the
// one before is on its way.

import { h, wishKey } from "./dom.js";
import { icon } from "./icons.js";
import { toast } from "./parts.js";

const TALLEST = 240;

/** The form with its box and button. `send(text, wish)` says something once for each wish; what it refuses is given back to
 * the box, before what was written meanwhile. */
export function composer(send) {
  const input = h("textarea", { name: "text", rows: 2, placeholder: "Write a message", "aria-label": "Message", "data-slash": "" });
  const button = h("button.primary", { type: "submit", title: "Send (Ctrl Enter)" }, icon("send"), h("span", "Send"));
  const form = h("form.compose.acts", input, button);
  const waiting = [];
  const fit = () => {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight + 2, TALLEST)}px`;
  };
  const write = (text) => { input.value = text; fit(); };
  const sendAll = async () => {
    try {
      for (; waiting.length; waiting.shift()) await send(waiting[0].text, waiting[0].wish);
    } catch (problem) {
      write([...waiting.splice(0).map((one) => one.text), input.value].filter((one) => one.trim()).join("\n"));
      toast(problem.message, "bad");
    }
  };
  const submit = () => {
    const text = input.value;
    if (!text.trim()) return;
    write("");
    if (waiting.push({ text, wish: wishKey() }) === 1) sendAll();
  };
  form.addEventListener("submit", (sent) => { sent.preventDefault(); submit(); });
  input.addEventListener("input", fit);
  input.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) { pressed.preventDefault(); submit(); }
  });
  return { form, input, button };
}
