// The form for a new task: the prompt; everything else has a default.

import { post } from "../api.js";
import { createNavigator } from "../app.js";
import { createBudgetFields, gatherBudget, LIMIT_NAMES } from "../budget.js";
import { createRequestKey, h } from "../dom.js";
import { createAgentPicker, createDirectoryPicker, createNoticesPicker } from "../picker.js";
import { desk } from "../desk.js";
import {
  createField, createFormButtons, createPageHead, focusFirst, handleSubmit, pickFilled, showProblem, showReadOnly,
  submitWithKey,
} from "../parts.js";

export default async function renderNewTask(main, page) {
  page.setTitle("New task");
  if (!desk.may.act) return showReadOnly(main, "New task", "submit tasks");
  const key = createRequestKey(); // a request that is repeated after a lost reply creates one task
  const prompt = h("textarea", {
    name: "prompt", rows: 8, required: true, value: page.search.get("prompt") ?? "",
    placeholder: "What should the agent do? Write it as you would to a colleague.", "data-slash": "",
  });
  const button = h("button.primary", { type: "submit" }, "Submit");
  const number = (name, extra) => h("input.num", { name, type: "number", ...extra });
  const text = (name, placeholder) => h("input", { name, placeholder, autocomplete: "off" });
  const form = h("form.form", { noValidate: true },
    createField("Prompt", prompt),
    h("div.form-row",
      createField("Agent", createAgentPicker(page.search.get("agent") ?? "")),
      createField("Directory", createDirectoryPicker(page.search.get("workdir") ?? ""))),
    createBudgetFields({
      about: "For the task and all work that grows out of it.", empty: "agent default",
      limits: Object.fromEntries(LIMIT_NAMES.map((name) => [name, page.search.get(`budget.${name}`)])),
      mode: page.search.get("on_budget"),
    }),
    h("details", h("summary", "More options"),
      h("div.form-row.more-fields",
        createField("Timeout", text("timeout", "agent default; e.g. 10m"),
          "A task that takes longer fails."),
        createField("Delay", text("delay", "none; e.g. 5m"), "The task starts after this time."),
        createField("Priority", number("priority", { min: -100, max: 100, value: "0" }),
          "-100 to 100; higher starts first."),
        createField("Notify", text("route", "default; e.g. console"),
          "The channels that get notices about it, with blanks between them."),
        createField("Notices", createNoticesPicker(), "Which notices are sent."))),
    createFormButtons(button));
  handleSubmit(form, button, async (values) => {
    if (!values.prompt.trim()) return showProblem(form, { field: "prompt", message: "Enter a prompt." });
    const texts = ["agent", "workdir", "timeout", "delay", "route", "notices", "on_budget"];
    const body = { prompt: values.prompt, budget: gatherBudget(values).budget, ...pickFilled(values, texts) };
    if (Number(values.priority)) body.priority = Number(values.priority);
    const navigate = createNavigator();
    const task = await post("/tasks", body, { key });
    return navigate(`/tasks/${task.id}`);
  });
  submitWithKey(form);
  main.append(createPageHead("New task"), form);
  return focusFirst(prompt);
}
