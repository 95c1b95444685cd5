// The form for a new goal: objective, deadline and budget.

import { post } from "../api.js";
import { createNavigator } from "../app.js";
import { desk } from "../desk.js";
import { createRequestKey, h } from "../dom.js";
import {
  createField, createFormButtons, createPageHead, focusFirst, handleSubmit, pickFilled, showProblem, showReadOnly,
  submitWithKey,
} from "../parts.js";
import { createAgentPicker, createDirectoryPicker } from "../picker.js";

export default async function renderNewGoal(main, page) {
  page.setTitle("New goal");
  if (!desk.may.act) return showReadOnly(main, "New goal", "create goals");
  const key = createRequestKey();
  const text = (name, placeholder) => h("input", { name, placeholder, autocomplete: "off" });
  const number = (name) => h("input.num", { name, type: "number", min: 0, placeholder: "no limit" });
  const objective = h("textarea", {
    name: "objective", rows: 5, required: true, value: page.search.get("objective") ?? "",
    placeholder: "What should be reached, and how can one check that it is?", "data-slash": "",
  });
  const button = h("button.primary", { type: "submit" }, "Create goal");
  const form = h("form.form", { noValidate: true },
    createField("Objective", objective),
    h("div.form-row", createField("Agent", createAgentPicker(page.search.get("agent") ?? "")),
      createField("Directory", createDirectoryPicker(page.search.get("workdir") ?? ""))),
    h("div.form-row",
      createField("Deadline", text("deadline", "in 48h"), "For example in 6h, tomorrow 18:00 or 2026-03-29T09:00."),
      createField("Maximum steps", number("max_steps"), "The goal pauses at this limit.")),
    h("details", h("summary", "More options"),
      h("div.form-row.more-fields",
        createField("Maximum tokens", number("max_tokens"), "The goal pauses at this limit."),
        createField("Maximum dollars",
          h("input.num", { name: "max_usd", type: "number", min: 0, step: "any", placeholder: "no limit" }),
          "The goal pauses at this limit."),
        createField("Maximum work time", text("max_seconds", "no limit; e.g. 2h"),
          "The goal pauses at this limit."),
        createField("Verifier", text("verifier", "none; name of an agent"),
          "A second agent that checks the result before the goal is complete."),
        createField("Session", text("session_key", "a new session"), "The session in which the goal runs."),
        createField("Notify", text("route", "default; e.g. console"),
          "The channel that gets a notice when the goal ends."))),
    createFormButtons(button));
  handleSubmit(form, button, async (values) => {
    if (!values.objective.trim()) return showProblem(form, { field: "objective", message: "Enter an objective." });
    const texts = ["agent", "workdir", "deadline", "max_seconds", "verifier", "session_key", "route"];
    const body = { objective: values.objective, ...pickFilled(values, texts) };
    for (const name of ["max_steps", "max_tokens", "max_usd"])
      if (Number(values[name])) body[name] = Number(values[name]);
    const navigate = createNavigator();
    const goal = await post("/goals", body, { key });
    return navigate(`/goals/${goal.id}`);
  });
  submitWithKey(form);
  main.append(createPageHead("New goal"), form);
  return focusFirst(objective);
}
