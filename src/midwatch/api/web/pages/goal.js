// One goal: what is to be reached, what was done for it step by step, and what is left.

import { asking, del, get, patch, post } from "../api.js";
import { go } from "../app.js";
import { attention, needsCare } from "../attention.js";
import { firstLine, h, keyed, perFrame, say } from "../dom.js";
import {
  actButton, agoOf, ask, attribute, buttons, confirmed, copyButton, empty, field, pageHead, panel, sessionLink,
  skeleton, toast,
} from "../parts.js";
import {
  alertLine, follow, known, nameOf, RUN_KINDS, runParts, short, tokensOf, updateRun, updateStanding,
} from "../automation-parts.js";
import { dateTime, length, span } from "../time.js";
import { isOpenGoal, meters, standText, updateMeters } from "./goals.js";

const STEPS = 200;

export default async function goal(main, page) {
  const id = page.params.id;
  page.setTitle("Goal");
  main.className = "task-page standing-page";
  const view = build(main, id);
  const data = { one: null, steps: [], works: new Map() };
  const draw = perFrame(() => page.isShown() && data.one && drawAll(view, data, page));
  const ask = asking();
  const read = async () => {
    const { isNext } = ask();
    const path = `/goals/${encodeURIComponent(id)}`;
    const [one, { runs }] = await Promise.all([get(path), get(`${path}/steps?limit=${STEPS}`)]);
    if (!isNext()) return;
    Object.assign(data, { one, steps: runs });
    draw();
  };
  const again = () => read().catch(() => {});
  view.leave = () => {
    if (!page.isShown()) return;
    toast("The goal was cleared.");
    go("/goals", { replace: true });
  };
  const concerns = (event) => {
    if (event.payload?.goal_id === id) {
      if (event.kind === "goal_changed" && event.payload.fields?.includes("cleared")) return void view.leave();
      if (event.kind === "goal_step") data.works.set(event.payload.task_id, event.payload);
      return id;
    }
    return RUN_KINDS.has(event.kind) &&
      (data.works.has(event.task_id) || data.steps.some((step) => step.task_id === event.task_id))
      ? id
      : null;
  };
  const first = read();
  follow(page, { first, concerns, read: again, reset: again });
  page.whenLeft(attention.on(draw));
  await first;
  const { events } = await get(
    `/events?kind=goal_step&session_key=${encodeURIComponent(data.one.session_key)}` +
      `&before=${Number.MAX_SAFE_INTEGER}&limit=1000`,
  ).catch(() => ({ events: [] }));
  for (const event of events) if (event.payload.goal_id === id) data.works.set(event.payload.task_id, event.payload);
  draw();
}

function build(main, id) {
  const budget = meters();
  const view = {
    title: h("h1.cut", "…"), status: h("span.status", { role: "status" }), left: h("mw-left.num"), leftLine: h("span"),
    next: agoOf(null), nextLine: h("span.dim"), buttons: h("span.task-buttons.acts"),
    stand: h("p.told.standing-note"), objective: h("div.said"), texts: h("div.stack.goal-texts"),
    steps: h("ol.steps", { "aria-label": "Steps" }), facts: h("dl.facts"), budget: budget.parts,
    noSteps: empty("No steps yet", "Each step is a task; it is listed here when it begins."),
  };
  view.leftLine.append(view.left, " left");
  view.nextLine.append("next step ", view.next);
  const objective = panel("Objective",
    { actions: [copyButton(() => view.objective.textContent, "Copy the objective")] });
  objective.body.classList.add("padded");
  objective.body.append(view.objective);
  const steps = panel("Steps", { name: "goal-steps", count: true });
  view.counter = steps.counter;
  steps.body.append(view.steps, view.noSteps);
  const spent = panel("Budget", { name: "budget" });
  spent.body.classList.add("padded");
  spent.body.append(budget.node);
  const about = panel("About");
  about.body.classList.add("padded");
  about.body.append(view.facts);
  const head = pageHead("");
  head.replaceChildren(h("nav.crumbs", { "aria-label": "Where" }, h("a", { href: "/goals" }, "Goals")), view.title,
    h("span.spacer"), view.buttons);
  view.body = h("div", { hidden: true }, head,
    h("p.task-line", view.status, view.leftLine, view.nextLine, h("span.spacer"), h("code.faint", id)),
    view.stand,
    h("div.task-grid", h("div.stack", objective.node, steps.node), h("div.stack", spent.node, about.node, view.texts)));
  view.loading = skeleton(8);
  main.append(view.loading, view.body);
  return view;
}

function drawAll(view, data, page) {
  const { one, steps, works } = data;
  view.loading.remove();
  view.body.hidden = false;
  const name = nameOf(one);
  page.setTitle(firstLine(name, 100));
  say(view.title, name).title = name;
  updateStanding(view.status, one);
  attribute(view.left, "at", one.deadline_at);
  view.leftLine.hidden = !isOpenGoal(one);
  attribute(view.next, "at", one.next_run_at);
  view.nextLine.hidden = !one.next_run_at || one.status !== "active";
  const alert = alertLine(one);
  say(view.stand, alert || standText(one));
  view.stand.classList.toggle("care", Boolean(alert) || needsCare(one) || one.status === "timeout");
  view.stand.classList.toggle("reached", one.status === "complete");
  drawButtons(view.buttons, one, view.leave);
  say(view.objective, one.objective);
  updateMeters(view.budget, one);
  const texts = known([
    ["Evidence", one.evidence], ["Missing, as the verifier found", isOpenGoal(one) ? one.missing : null],
    ["Summary of the newest step", one.summary],
  ]);
  keyed(view.texts, texts, ([title]) => title, ([title]) => textPanel(title), (node, [, text]) => say(node.text, text));
  keyed(view.steps, steps, (step) => step.task_id, stepRow,
    (node, step) => updateStep(node, step, works.get(step.task_id)));
  say(view.counter, one.step || "");
  view.noSteps.hidden = steps.length > 0;
  drawFacts(view.facts, one);
}

function textPanel(title) {
  const text = h("div.said.clamped-text");
  const made = panel(title, { actions: [copyButton(() => text.textContent, `Copy: ${title}`)] });
  made.body.classList.add("padded");
  made.body.append(text);
  made.node.text = text;
  return made.node;
}

function stepRow(step) {
  const parts = {
    ...runParts(step), name: h("span.row-title"), at: agoOf(null), tokens: h("span.num.dim"), text: h("span.cut"),
  };
  const node = h("li",
    h("a.row.step-row", { href: `/tasks/${step.task_id}` }, parts.name, parts.status, parts.tokens, parts.time,
      h("span.row-sub.two-ends", parts.text, parts.at)));
  node.parts = parts;
  return node;
}

function updateStep(node, step, work) {
  const { name, at, tokens, text } = node.parts;
  node.dataset.status = step.status;
  updateRun(node.parts, step);
  say(name, !work ? "Step" : work.work === "step" ? `Step ${work.step}` : work.work === "verify" ? "Check" : "Wrap-up");
  const used = tokensOf(step);
  say(tokens, used === null ? "" : `${short(used)} tokens`);
  attribute(at, "at", step.completed_at ?? step.started_at);
  at.hidden = !(step.completed_at ?? step.started_at);
  text.classList.toggle("bad-text", step.status === "failed");
  say(text,
    firstLine(step.status === "failed" ? (step.error ?? step.outcome) : step.result, 300) ||
      (step.status === "running" ? "works" : ""));
}

const SHOWN = {
  active: ["step", "pause", "delay", "complete", "edit", "clear"],
  waiting_for_session: ["pause", "complete", "edit", "clear"], paused: ["resume", "complete", "edit", "clear"],
};

function drawButtons(place, one, leave) {
  place.one = one;
  const path = `/goals/${one.id}`;
  const make = {
    step: () => actButton("Step now", () => post(`${path}/step`),
      { iconName: "play", title: "Begin the next step now instead of waiting" }),
    pause: () =>
      actButton("Pause", () => post(`${path}/pause`), { iconName: "pause", title: "Rest; a running step is stopped" }),
    resume: () => actButton("Resume", () => post(`${path}/resume`), { kind: "primary", iconName: "retry" }),
    complete: () => actButton("Complete", () => askComplete(place.one), { iconName: "check" }),
    delay: () => actButton("Delay", () => askDelay(place.one), { iconName: "clock" }),
    edit: () => actButton("Edit", () => askEdit(place.one), { iconName: "edit" }),
    clear: () => actButton("Clear", () => cleared(place.one, leave), { kind: "danger", iconName: "bin" }),
  };
  buttons(place, SHOWN[one.status] ?? ["clear"], make, { step: one.running || !one.next_run_at });
}

async function askComplete(one) {
  ask("Complete the goal",
    [
      field("Evidence", h("textarea", { name: "evidence", rows: 4, value: one.evidence ?? "" }),
        "What proves that it is reached. A step that runs is stopped."),
    ],
    "Complete it",
    ({ evidence }) => post(`/goals/${one.id}/complete`, { evidence }));
}

async function askDelay(one) {
  ask("Delay the next step", [
    field("By", h("input", { name: "duration", value: "1h", autocomplete: "off" }), "1m to 12h; 0 begins it at once."),
    field("Reason", h("input", { name: "reason", autocomplete: "off", placeholder: "what it waits for" })),
  ], "Delay it", ({ duration, reason }) =>
    post(`/goals/${one.id}/delay`, { duration: duration.trim(), reason: reason.trim() || "a person delayed it" }));
}

async function askEdit(one) {
  const first = {
    objective: one.objective, deadline: one.deadline_at, max_steps: String(one.max_steps),
    max_tokens: String(one.max_tokens), max_usd: String(one.max_usd),
    max_seconds: one.max_seconds ? span(one.max_seconds) : "0",
  };
  const input = (name, more) => h("input", { name, value: first[name], autocomplete: "off", ...more });
  const number = (name) => input(name, { type: "number", min: 0, class: "num" });
  ask("Edit the goal", [
    field("Objective", h("textarea", { name: "objective", rows: 5, value: first.objective })),
    field("Deadline", input("deadline", {}), "A time, or in 6h, tomorrow 18:00."),
    h("div.form-row", field("Most steps", number("max_steps")), field("Most tokens", number("max_tokens"))),
    h("div.form-row", field("Most dollars", input("max_usd", { type: "number", min: 0, step: "any", class: "num" })),
      field("Most time at work", input("max_seconds"))),
  ], "Save", async (said) => {
    const changes = Object.fromEntries(Object.entries(said)
      .filter(([name, value]) => value !== first[name])
      .map(([name, value]) => [name, /^max_(steps|tokens|usd)$/.test(name) ? Number(value) : value || "0"]));
    if (Object.keys(changes).length) await patch(`/goals/${one.id}`, changes);
  });
}

async function cleared(one, leave) {
  if (!(await confirmed("Give this goal up and remove it? A step that runs is stopped; its tasks stay.", "Clear it")))
    return;
  await del(`/goals/${one.id}`);
  leave();
}

function drawFacts(list, one) {
  const facts = known([
    ["Agent", one.agent], ["Verifier", one.verifier], ["Directory", one.workdir],
    ["Session", sessionLink(one.session_key)],
    ["Deadline", dateTime(one.deadline_at)], ["Waits for", one.delay_reason],
    ["Failures", one.errors ? `${one.errors} in a row` : null],
    ["Time at work", length(one.seconds)], ["Route", one.route],
    ["Set", `${dateTime(one.created_at)}${one.creator ? ` by ${one.creator}` : ""}`],
    ["Ended", one.completed_at ? dateTime(one.completed_at) : null],
  ]);
  keyed(list, facts, ([name]) => name, ([name]) => h("div.fact", h("dt", name), h("dd")), (node, [, value]) => {
    if (value instanceof Node) {
      if (node.lastChild.textContent !== value.textContent) node.lastChild.replaceChildren(value);
    } else say(node.lastChild, value);
  });
}
