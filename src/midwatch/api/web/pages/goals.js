// Goals: what agents pursue step after step, how far they are, and what they have left.

import { asking, get, query } from "../api.js";
import { go } from "../app.js";
import { attention, needsCare } from "../attention.js";
import { h, perFrame, placed, say } from "../dom.js";
import { dollars } from "../figures.js";
import { icon } from "../icons.js";
import { agoOf, attribute, command, empty, failure, pageHead, skeleton } from "../parts.js";
import {
  alertLine, follow, meter, nameOf, RUN_KINDS, short, updateMeter, updateStanding,
} from "../automation-parts.js";
import { length } from "../time.js";

const STATUSES = {
  "": "all", active: "active", waiting_for_session: "waiting", paused: "paused", complete: "complete",
  timeout: "timed out",
};
const LISTED = 200;
const OPEN = new Set(["active", "paused", "waiting_for_session"]);

export const isOpenGoal = (one) => OPEN.has(one.status);

export default async function goals(main, page) {
  page.setTitle("Goals");
  const status = page.search.get("status") ?? "";
  const list = h("ol.rows.goal-list", { "aria-label": "Goals" });
  const body = h("section.panel", skeleton(5), list);
  main.append(
    pageHead("Goals", h("a.button.primary.acts", { href: "/goals/new" }, icon("plus"), h("span", "New goal"))),
    filters(status), body);
  const data = { all: new Map() };
  const draw = perFrame(() => {
    if (!page.isShown() || !data.loaded) return;
    const rows = [...data.all.values()]
      .filter((one) => !status || one.status === status)
      .sort((a, b) => Number(isOpenGoal(b)) - Number(isOpenGoal(a)) || (a.id < b.id ? 1 : -1));
    placed(list, rows, (one) => one.id, row, update);
    body.querySelector(".empty")?.remove();
    if (!rows.length) body.append(nothing(status));
  });
  const ask = asking();
  const loaded = (found, isNext) => {
    if (!page.isShown()) return;
    body.querySelector(".skeleton")?.remove();
    for (const one of found) if (isNext(one.id)) data.all.set(one.id, one);
    data.loaded = true;
    draw();
  };
  const read = async () => {
    const { isNext } = ask();
    loaded((await get(`/goals${query({ status, limit: LISTED })}`)).goals.filter((one) => !gone.has(one.id)), isNext);
  };
  const gone = new Set();
  const readOne = async (id) => {
    if (gone.has(id)) return;
    const { isNext } = ask();
    const found = await get(`/goals/${id}`).catch((problem) => problem);
    if (found.status === 404) {
      data.all.delete(id);
      draw();
    } else if (found.id && !gone.has(id)) loaded([found], isNext);
  };
  const steps = new Map(); // whose step a task is
  const bySession = (event) =>
    [...data.all.values()].find((one) => one.session_key === event.session_key && isOpenGoal(one))?.id;
  const concerns = (event) => {
    const id = event.payload?.goal_id;
    if (event.kind === "goal_step") steps.set(event.payload.task_id, id);
    if (id) {
      if (event.kind === "goal_changed" && event.payload.fields?.includes("cleared")) {
        gone.add(id);
        data.all.delete(id);
        draw();
        return null;
      }
      return id;
    }
    return RUN_KINDS.has(event.kind) ? (steps.get(event.task_id) ?? bySession(event) ?? null) : null;
  };
  const first = read();
  follow(page, { first, concerns, read: readOne, reset: () => { data.all.clear(); read().catch(() => {}); } });
  page.whenLeft(attention.on(draw));
  try {
    await first;
  } catch (problem) {
    if (page.isShown())
      body.replaceChildren(failure(problem, () => go(location.pathname + location.search, { replace: true })));
  }
}

function filters(status) {
  const change = (name) => go(`/goals${query({ status: name })}`, { replace: true });
  return h("div.filters", h("div.segments", { role: "group", "aria-label": "Status" },
    Object.entries(STATUSES).map(([name, text]) =>
      h("button", { type: "button", "aria-pressed": String(status === name), onclick: () => change(name) }, text))));
}

function nothing(status) {
  if (status) return empty("No goal is like that", "", h("a.button", { href: "/goals" }, "Show all"));
  return empty("No goals yet",
    "A goal is pursued step after step, by itself, until it is reached, its time is up or its budget is spent.",
    h("a.button.primary.acts", { href: "/goals/new" }, "New goal"),
    command('midwatch goal set "All tests of the project pass" --deadline "in 1d"'));
}

/** Steps, tokens and time of a goal, used and left. */
export function meters() {
  const parts = { steps: meter("steps"), tokens: meter("tokens"), cost: meter("cost"), time: meter("time") };
  return { parts, node: h("span.meters", Object.values(parts)) };
}

export function updateMeters({ steps, tokens, cost, time }, one) {
  const open = isOpenGoal(one);
  const of = (most, text) => (most ? ` of ${text}` : "");
  updateMeter(steps, one.step, one.max_steps,
    `${one.step}${of(one.max_steps, one.max_steps)} ${one.max_steps || one.step !== 1 ? "steps" : "step"}`, open);
  updateMeter(tokens, one.tokens, one.max_tokens,
    `${short(one.tokens)}${of(one.max_tokens, short(one.max_tokens))} tokens`, open);
  cost.hidden = !one.max_usd && !one.usd;
  updateMeter(cost, one.usd, one.max_usd, `${dollars(one.usd)}${of(one.max_usd, dollars(one.max_usd))}`, open);
  updateMeter(time, one.seconds, one.max_seconds,
    `${length(one.seconds)}${of(one.max_seconds, length(one.max_seconds))} at work`, open);
}

/** How it stands, in a line. */
export function standText(one) {
  if (one.status === "paused") return `paused: ${one.paused_why ?? ""}`;
  if (one.status === "waiting_for_session") return `waits for its session ${one.session_key}`;
  if (one.status === "complete") return one.evidence ? `reached: ${one.evidence}` : "reached";
  if (one.status === "timeout") return "its deadline has passed";
  if (one.running)
    return { step: `step ${one.step} runs`, verify: "its claim is verified", wrap_up: "wraps up" }[one.work];
  return one.delay_reason ? `waits: ${one.delay_reason}` : one.step ? "the next step begins" : "its first step begins";
}

function row(one) {
  const budget = meters();
  const parts = {
    status: h("span.status"), title: h("span.cut.row-title"), left: h("mw-left.num"), done: agoOf(null),
    next: agoOf(null), sub: h("span.cut"), meters: budget.parts,
  };
  parts.leftLine = h("span.left", parts.left, " left");
  parts.nextLine = h("span.next-step", "next step ", parts.next);
  const link = h("a.row.goal-row", { href: `/goals/${one.id}` }, parts.status, parts.title, budget.node,
    h("span.ends", parts.leftLine, parts.done),
    h("span.row-sub.two-ends", parts.sub, parts.nextLine));
  const node = h("li", link);
  node.parts = parts;
  return node;
}

function update(node, one) {
  const { status, title, left, leftLine, done, next, nextLine, sub, meters: parts } = node.parts;
  const open = isOpenGoal(one);
  updateStanding(status, one);
  say(title, nameOf(one));
  updateMeters(parts, one);
  attribute(left, "at", one.deadline_at);
  leftLine.hidden = !open;
  attribute(done, "at", one.completed_at ?? one.updated_at);
  done.hidden = open;
  attribute(next, "at", one.next_run_at);
  nextLine.hidden = !one.next_run_at || one.status !== "active";
  const alert = alertLine(one);
  sub.className = alert || needsCare(one) || one.status === "timeout" ? "cut warn-text" : "cut";
  say(sub, alert || standText(one));
}
