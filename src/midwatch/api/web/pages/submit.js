// A new task: the prompt first, everything else has a default.

import { post } from "../api.js";
import { onward } from "../app.js";
import { h, wishKey } from "../dom.js";
import { agentPicker, directoryPicker } from "../picker.js";
import { desk } from "../desk.js";
import { act, beginAt, empty, field, pageHead, showProblem } from "../parts.js";

export default async function submit(main, page) {
  page.setTitle("New task");
  if (!desk.may.act)
    return main.append(pageHead("New task"),
      h("section.panel",
        empty("You may only look",
          "Your role is viewer. Ask the owner for a token with the role operator to hand in tasks.")));
  const key = wishKey(); // sent again after a lost reply it is still one task
  const prompt = h("textarea", {
    name: "prompt", rows: 8, required: true, value: page.search.get("prompt") ?? "",
    placeholder: "What is to be done? Say it as you would to a colleague.", "data-slash": "",
  });
  const button = h("button.primary", { type: "submit" }, "Submit");
  const number = (name, extra) => h("input.num", { name, type: "number", ...extra });
  const text = (name, placeholder) => h("input", { name, placeholder, autocomplete: "off" });
  const form = h("form.form", { noValidate: true },
    field("Prompt", prompt),
    h("div.form-row",
      field("Agent", agentPicker(page.search.get("agent") ?? "")),
      field("Directory", directoryPicker(page.search.get("workdir") ?? ""))),
    h("details", h("summary", "More"),
      h("div.form-row.more-fields",
        field("Timeout", text("timeout", "the agent's own; such as 10m or 1h30m"),
          "The task fails when it takes longer."),
        field("Delay", text("delay", "none; such as 5m"), "It starts no earlier than that."),
        field("Priority", number("priority", { min: -100, max: 100, value: "0" }), "-100 to 100; higher goes first."),
        field("Tell", text("route", "the default; such as console or phone"),
          "The channel that hears of its start and end."))),
    h("div.form-buttons", button,
      h("span.hint", h("kbd", "Ctrl"), " ", h("kbd", "Enter"), " submits from anywhere in the form")));
  const send = () => act(button, async () => {
    const said = Object.fromEntries(new FormData(form));
    if (!said.prompt.trim()) return showProblem(form, { field: "prompt", message: "Write what is to be done." });
    const body = { prompt: said.prompt };
    for (const name of ["agent", "workdir", "timeout", "delay", "route"])
      if (said[name]?.trim()) body[name] = said[name].trim();
    if (Number(said.priority)) body.priority = Number(said.priority);
    const lead = onward();
    try {
      const task = await post("/tasks", body, { key });
      return lead(`/tasks/${task.id}`);
    } catch (problem) {
      return showProblem(form, problem);
    }
  });
  form.addEventListener("submit", (sent) => { sent.preventDefault(); send(); });
  form.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) { pressed.preventDefault(); send(); }
  });
  main.append(pageHead("New task"), form);
  return beginAt(prompt);
}
