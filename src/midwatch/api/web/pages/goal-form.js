// The form for a new goal: objective, deadline and budget.

import { post } from "../api.js";
import { createNavigator } from "../app.js";
import { createBudgetFields } from "../budget.js";
import { desk } from "../desk.js";
import { createRequestKey, h } from "../dom.js";
import {
  createField, createFormButtons, createPageHead, focusFirst, handleSubmit, pickFilled, showProblem, showReadOnly,
  showToast, submitWithKey,
} from "../parts.js";
import { createAgentPicker, createDirectoryPicker, createNoticesPicker } from "../picker.js";

export default async function renderNewGoal(main, page) {
  page.setTitle("New goal");
  if (!desk.may.act) return showReadOnly(main, "New goal", "create goals");
  const key = createRequestKey();
  const text = (name, placeholder) => h("input", { name, placeholder, autocomplete: "off" });
  const objective = h("textarea", {
    name: "objective", rows: 5, required: true, value: page.search.get("objective") ?? "",
    placeholder: "What should be reached, and how can one check that it is?", "data-slash": "",
  });
  const button = h("button.primary", { type: "submit" }, "Create goal");
  const form = h("form.form", { noValidate: true },
    createField("Objective", objective),
    h("div.form-row", createField("Agent", createAgentPicker(page.search.get("agent") ?? "")),
      createField("Directory", createDirectoryPicker(page.search.get("workdir") ?? ""))),
    createField("Deadline", text("deadline", "in 48h"), "For example in 6h, tomorrow 18:00 or 2026-03-29T09:00."),
    createGoalBudget(),
    h("details", h("summary", "More options"),
      h("div.form-row.more-fields",
        createField("Name", text("name", "none"), "To use instead of the id; no other open goal of yours has it."),
        createField("Tags", text("tags", "none; e.g. daily, ops"),
          "Words to find it by, with commas between them; its steps have them, too."),
        createField("Every", text("every_seconds", "at the pace of the goal; e.g. 10m"),
          "Start a step this often. Default: soon after long steps, later after short ones."),
        createField("Verifier", text("verifier", "none; name of an agent"),
          "A second agent that checks the result before the goal is complete."),
        createField("Judge", text("judge", "none; name of an agent"),
          "An agent that is asked after each step whether the goal is reached."),
        createField("Check", text("check", "none; e.g. make test"),
          "A command that runs after each step. Exit status 0 completes the goal."),
        createField("For at most", text("check_timeout", "10m"), "How long the check may take."),
        createField("Session", text("session_key", "a new session"), "The session in which the goal runs."),
        createField("Scope", text("scope", "you, or the session; e.g. chat:main"),
          "The user or the chat that the goal belongs to: user:NAME or chat:SESSION."),
        createField("Notify", text("route", "default; e.g. console"),
          "The channels that get notices when the goal ends or pauses."),
        createField("Notices", createNoticesPicker(), "Which notices are sent."),
        createField("Progress every", text("progress_every", "15m"),
          "A notice about the progress is sent this often at most; 0 for never."))),
    createFormButtons(button));
  handleSubmit(form, button, async (values) => {
    if (!values.objective.trim()) return showProblem(form, { field: "objective", message: "Enter an objective." });
    const navigate = createNavigator();
    const { tags, scope, ...rest } = values;
    const parts = /^(user|chat):(.+)$/.exec(scope.trim());
    if (scope.trim() && !parts)
      return showProblem(form, { field: "scope", message: "Write user:NAME or chat:SESSION." });
    const body = {
      ...pickFilled(rest, Object.keys(rest)),
      ...(tags.trim() ? { tags: splitList(tags) } : {}),
      ...(parts ? { scope_kind: parts[1], scope_id: parts[2] } : {}),
    };
    const goal = await saveGoal(post("/goals", body, { key }));
    showWarnings(goal);
    return navigate(`/goals/${goal.id}`);
  });
  submitWithKey(form);
  main.append(createPageHead("New goal"), form);
  return focusFirst(objective);
}

/** Return the items of a text with commas between them. */
export const splitList = (text) => text.split(",").map((item) => item.trim()).filter(Boolean);

/** Wait for a request that saves a goal. In a problem, a limit is called as in other forms. */
export const saveGoal = (request) => request.catch((problem) => {
  problem.message = problem.message.replace(/^max_(tokens|usd|steps|seconds):( it)?/, "the budget's $1");
  throw problem;
});

/** Show why limits of a goal that was saved never stop it. */
export const showWarnings = (goal) => goal.warnings.forEach((warning) => showToast(warning, "bad"));

/** Create the folded fields of a goal's budget; without a goal they are empty. */
export function createGoalBudget(goal = {}) {
  const { max_tokens: tokens, max_usd: usd, max_steps: steps, max_seconds: seconds } = goal;
  return createBudgetFields({
    prefix: "max_", about: "For all steps of the goal together, and all work that grows out of them.",
    empty: goal.id ? "no limit" : "default", hints: {
      steps: "Each step is one task. The goal pauses at this limit. Default: 50; 0 for no limit.",
    },
    limits: { tokens, usd, steps, seconds }, mode: goal.on_budget,
  });
}
