// A new goal: what is to be reached, and what may be spent on it.

import { post } from "../api.js";
import { onward } from "../app.js";
import { desk } from "../desk.js";
import { h, wishKey } from "../dom.js";
import { act, beginAt, empty, field, pageHead, showProblem } from "../parts.js";
import { agentPicker, directoryPicker } from "../picker.js";

export default async function setGoal(main, page) {
  page.setTitle("New goal");
  if (!desk.may.act)
    return main.append(pageHead("New goal"),
      h("section.panel",
        empty("You may only look",
          "Your role is viewer. Ask the owner for a token with the role operator to set goals.")));
  const key = wishKey();
  const text = (name, placeholder) => h("input", { name, placeholder, autocomplete: "off" });
  const number = (name) => h("input.num", { name, type: "number", min: 0, placeholder: "no limit" });
  const objective = h("textarea", {
    name: "objective", rows: 5, required: true, value: page.search.get("objective") ?? "",
    placeholder: "What is to be reached, and how would one see that it is?", "data-slash": "",
  });
  const button = h("button.primary", { type: "submit" }, "Set the goal");
  const form = h("form.form", { noValidate: true },
    field("Objective", objective),
    h("div.form-row", field("Agent", agentPicker(page.search.get("agent") ?? "")),
      field("Directory", directoryPicker(page.search.get("workdir") ?? ""))),
    h("div.form-row",
      field("Deadline", text("deadline", "in 48h"), "Such as in 6h, tomorrow 18:00 or 2026-03-29T09:00."),
      field("Most steps", number("max_steps"), "It pauses when they are spent.")),
    h("details", h("summary", "More"),
      h("div.form-row.more-fields",
        field("Most tokens", number("max_tokens"), "It pauses when they are spent."),
        field("Most dollars",
          h("input.num", { name: "max_usd", type: "number", min: 0, step: "any", placeholder: "no limit" }),
          "It pauses when they are spent."),
        field("Most time at work", text("max_seconds", "no limit; such as 2h"), "It pauses when it is spent."),
        field("Verifier", text("verifier", "none; the name of an agent"),
          "A second agent that checks the claim before it counts."),
        field("Session", text("session_key", "one of its own"), "The conversation that it goes on in."),
        field("Tell", text("route", "the default; such as console or phone"), "The channel that hears of its end."))),
    h("div.form-buttons", button,
      h("span.hint", h("kbd", "Ctrl"), " ", h("kbd", "Enter"), " submits from anywhere in the form")));
  const send = () => act(button, async () => {
    const said = Object.fromEntries(new FormData(form));
    if (!said.objective.trim())
      return showProblem(form, { field: "objective", message: "Write what is to be reached." });
    const wish = { objective: said.objective };
    for (const name of ["agent", "workdir", "deadline", "max_seconds", "verifier", "session_key", "route"])
      if (said[name]?.trim()) wish[name] = said[name].trim();
    for (const name of ["max_steps", "max_tokens", "max_usd"]) if (Number(said[name])) wish[name] = Number(said[name]);
    const lead = onward();
    try {
      return lead(`/goals/${(await post("/goals", wish, { key })).id}`);
    } catch (problem) {
      return showProblem(form, problem);
    }
  });
  form.addEventListener("submit", (sent) => { sent.preventDefault(); send(); });
  form.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) { pressed.preventDefault(); send(); }
  });
  main.append(pageHead("New goal"), form);
  return beginAt(objective);
}
