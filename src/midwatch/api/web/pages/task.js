// One task: what was asked, what happens, what came of it.

import { asking, get, post } from "../api.js";
import { onward } from "../app.js";
import { approvalList } from "../approval.js";
import { askMore, drawBudget, isSpent } from "../budget.js";
import { firstLine, h, insertSanitised, keyed, perFrame, say, set, wishKey } from "../dom.js";
import { usageText } from "../figures.js";
import { notice, relative, updateNotice, withWork } from "../lineage.js";
import { after, isOpen, line, tone, waitText } from "../model.js";
import { handOver, handoffRow, updateHandoffRow } from "../handoff-parts.js";
import {
  actButton, agoOf, attribute, confirmed, copyButton, elapsed, empty, pageHead, panel, promptText, sessionLink,
  skeleton, statusMark, toast, updateElapsed, updateStatus,
} from "../parts.js";
import { grow, Partial } from "../partial.js";
import { drawSteps } from "../steps.js";
import { snapshot, stream } from "../stream.js";
import { dateTime, length, timeOfDay } from "../time.js";
import "../waterfall.js";
import { Work } from "../work.js";
import { worktreePanel } from "../worktree.js";

const EVENTS_READ = 5000;

export default async function task(main, page) {
  const id = page.params.id;
  page.setTitle("Task");
  main.className = "task-page";
  const stop = new AbortController();
  page.whenLeft(() => stop.abort());
  const data = {
    task: null, events: new Map(), deliveries: new Map(), lineage: [], handoffs: [], early: [], last: null,
    work: new Work(),
  };
  const view = build(main, data, page);
  const draw = perFrame(() => page.isShown() && data.read && drawAll(view, data, page));
  const whole = async () => {
    const { id: known } = partial;
    const state = await snapshot({ task_id: id }, stop.signal).catch(() => null);
    if (!state?.partial || !page.isShown()) return;
    const begun = partial.id !== known && partial.id !== state.partial.message_id; // meanwhile, so it is newer
    if (!begun && partial.take(state.partial)) showPartial();
  };
  let reading = false;
  const partial = new Partial(async () => {
    if (reading) return;
    reading = true;
    await whole();
    reading = false;
  });
  const showPartial = perFrame(() => { data.partial = partial.text; drawOutput(view, data); });
  const take = (event) => {
    if (event.task_id !== id) return;
    if (!data.read) return void data.early.push(event);
    note(data, event);
    if (changesPage(event)) readPage().catch(() => {});
    draw();
  };
  const ask = asking();
  const readPage = async () => {
    const { isNext } = ask();
    const found = await get(`/tasks/${id}/page`, { signal: stop.signal });
    if (!isNext()) return;
    Object.assign(data, {
      task: found.task, prompt_html: found.prompt_html, result_html: found.result_html, lineage: withWork(found),
      handoffs: found.handoffs,
    });
    catchUp(data);
    data.last ??= found.last_event_at;
    for (const one of found.deliveries) data.deliveries.set(one.id, one);
    draw();
  };
  const readAll = async () => {
    await Promise.all([readPage(), readEvents(id, data, stop.signal)]);
    data.work.reset(inOrder(data));
    const early = data.early.splice(0);
    for (const event of early) note(data, event);
    catchUp(data);
    if (early.some(changesPage)) readPage().catch(() => {});
    data.read = true; // both: whether it has steps decides how the page is laid out
    draw();
    if (data.task.status === "running") await whole();
  };
  page.whenLeft(stream.on({
    event: take,
    live: (event) => {
      if (event.task_id !== id) return;
      // also before the rest is read: it is told once
      if (event.kind === "thought_delta" && data.work.take(event)) draw();
      if (event.kind === "screen_update") {
        data.partial = event.payload.screen;
        if (data.read) drawOutput(view, data);
      }
      if (!data.task) return;
      data.last = event.time;
      if (event.kind === "message_delta" && partial.add(event.payload)) showPartial();
      attribute(view.last, "at", data.last);
    },
    state: () => data.task?.status === "running" && whole(),
    reset: () => readAll().catch(() => {}),
  }));
  page.whenLeft(approvalList(view.approvals, { which: (one) => one.task_id === id, withTask: false }));
  await readAll();
}

async function readEvents(id, data, signal) {
  let last = 0;
  while (data.events.size < EVENTS_READ) {
    const { events } = await get(`/events?task_id=${id}&after=${last}&limit=1000`, { signal });
    for (const event of events) data.events.set(event.seq, event);
    if (events.length < 1000) break;
    last = events.at(-1).seq;
  }
  data.last = [...data.events.values()].at(-1)?.time ?? data.last;
}

const inOrder = (data) => [...data.events.values()].sort((a, b) => a.seq - b.seq);

/** Whether it tells of something that is not in the event itself. */
const changesPage = ({ kind }) => kind === "task_finished" || kind.startsWith("handoff_");

/** A reply may be older than what came meanwhile. */
function catchUp(data) {
  for (const event of inOrder(data)) data.task = after(data.task, event);
}

function note(data, event) {
  if (!data.events.has(event.seq)) data.events.set(event.seq, event);
  data.work.take(event);
  data.last = event.time;
  data.task = after(data.task, event);
  if (event.kind === "task_started" && data.read) data.partial = null;
  if (event.kind === "message_update" && event.payload.role === "agent" && isOpen(data.task))
    data.partial = event.payload.message;
  if (event.kind === "delivery_sent" || event.kind === "delivery_failed") {
    const { delivery_id, channel, notice, error } = event.payload;
    const known = data.deliveries.get(delivery_id) ?? { id: delivery_id, channel, notice };
    const sent = event.kind === "delivery_sent";
    data.deliveries.set(delivery_id,
      { ...known, status: sent ? "sent" : "failed", error: error ?? null, sent_at: sent ? event.time : null });
  }
}

function build(main, data, page) {
  const view = {
    status: set(statusMark({ status: "" }), { role: "status" }), title: h("h1.cut", "…"),
    id: h("code.faint", page.params.id), time: elapsed(null), last: agoOf(null), wait: h("span.dim"), due: agoOf(null),
    buttons: h("span.task-buttons.acts"), approvals: h("div.approvals.in-place", { "aria-live": "polite" }),
    facts: h("dl.facts"), budget: h("div.budget.task-budget", { hidden: true, role: "group", "aria-label": "Budget" }),
    lineage: h("ol.rows"), passed: h("ol.rows", { "aria-label": "Handoffs" }), deliveries: h("ol.rows"),
    prompt: h("div.page-text.clamped"), output: h("div.output"), waterfall: document.createElement("mw-waterfall"),
    events: h("tbody"),
  };
  const table = h("div.events-table.scroll-x", { hidden: true }, h("table.plain",
    h("thead", h("tr", h("th", "seq"), h("th", "time"), h("th", "event"), h("th", "what"))), view.events));
  const tab = (name, shown) => h("button", { type: "button", "aria-pressed": String(shown), onclick: (clicked) => {
    for (const one of clicked.currentTarget.parentNode.children)
      one.setAttribute("aria-pressed", String(one === clicked.currentTarget));
    view.waterfall.hidden = name !== "Waterfall";
    table.hidden = name === "Waterfall";
    drawEvents(view, data);
  } }, name);
  const more = h("button.quiet.show-all",
    { type: "button", hidden: true, onclick: () => { view.prompt.classList.remove("clamped"); more.hidden = true; } },
    "Show all");
  view.more = more;
  const prompt = panel("Prompt", { actions: [copyButton(() => data.task?.prompt ?? "", "Copy the prompt")] });
  prompt.body.classList.add("padded");
  prompt.body.append(view.prompt, more);
  view.tall = h("button.quiet.small", {
    type: "button", "aria-pressed": "false",
    onclick: () => view.tall.setAttribute("aria-pressed", String(view.workBody.classList.toggle("tall"))),
  }, "Taller");
  const work = panel("Work", { name: "task-work", count: true, actions: [view.tall] });
  Object.assign(view, {
    workPanel: work.node, workBody: work.body, workCount: work.counter, work: h("ol.steps-list"),
    noWork: h("p.faint", "What it thinks, plans and does is shown here."),
  });
  set(work.body, { tabindex: "0", role: "log" });
  work.body.setAttribute("aria-label", "Work");
  work.body.classList.add("work-body");
  work.body.append(view.work, view.noWork);
  view.workStuck = true;
  work.body.addEventListener("scroll", () => {
    view.workStuck = work.body.scrollHeight - work.body.scrollTop - work.body.clientHeight < 40;
  }, { passive: true });
  view.worktree = worktreePanel(page);
  const output = panel("Output",
    { name: "task-output", actions: [copyButton(() => data.task?.result ?? data.partial ?? "", "Copy the output")] });
  view.outputTitle = output.node.querySelector("h2");
  output.body.classList.add("padded");
  output.body.append(view.output);
  const timeline = panel("Timeline",
    { name: "timeline", actions: [h("span.segments.small", tab("Waterfall", true), tab("List", false))] });
  timeline.body.append(view.waterfall, table);
  const about = panel("About");
  about.body.classList.add("padded");
  about.body.append(view.budget, view.facts);
  const lineage = panel("Lineage");
  lineage.body.append(view.lineage, view.passed);
  const deliveries = panel("Notices");
  deliveries.body.append(view.deliveries);
  view.noLineage = empty("On its own", "Retries, parents, children and handoffs are listed here.");
  view.noDeliveries = empty("No notices", "Give it a route, such as console, to be told of its end.");
  lineage.body.append(view.noLineage);
  deliveries.body.append(view.noDeliveries);
  const head = pageHead("");
  head.replaceChildren(h("nav.crumbs", { "aria-label": "Where" }, h("a", { href: "/tasks" }, "Tasks")), view.title,
    h("span.spacer"), view.buttons);
  view.body = h("div", { hidden: true }, head, // shown when there is something to show, so that nothing moves
    h("p.task-line", view.status, h("span", view.time), h("span.dim", "last activity ", view.last),
      h("span.dim", view.wait, " ", view.due), h("span.spacer"), view.id),
    h("div.task-grid", h("div.stack", prompt.node, work.node, output.node, view.worktree.node, view.approvals),
      h("div.stack", timeline.node, about.node, lineage.node, deliveries.node)));
  view.loading = skeleton(8);
  main.append(view.loading, view.body);
  return view;
}

function drawAll(view, data, page) {
  const { task } = data;
  view.loading.remove();
  view.body.hidden = false;
  const title = task.prompt ? firstLine(promptText(task), 100) : task.id;
  page.setTitle(title);
  say(view.title, title).title = firstLine(task.prompt, 1000);
  updateStatus(view.status, task);
  if (task.status === "pending") {
    attribute(view.time, "from", null);
    attribute(view.time, "to", null);
  } else updateElapsed(view.time, task);
  attribute(view.last, "at", data.last);
  say(view.wait, waitText(task) ?? (task.stop_requested && isOpen(task) ? `stopping (${task.stop_requested})` : ""));
  view.due.hidden = task.status !== "pending" || !(Date.parse(task.due_at) > Date.now());
  attribute(view.due, "at", task.due_at);
  drawButtons(view, data);
  if (data.drawnPrompt !== data.prompt_html) {
    insertSanitised(view.prompt, data.prompt_html);
    data.drawnPrompt = data.prompt_html;
    view.more.hidden = view.prompt.scrollHeight <= view.prompt.clientHeight + 4;
  }
  drawWork(view, data);
  view.worktree.show(task);
  drawOutput(view, data);
  drawEvents(view, data);
  drawBudget(view.budget, task, inOrder(data));
  drawFacts(view.facts, task);
  keyed(view.lineage, data.lineage.filter((one) => one.relation !== "self"), (one) => one.id, relative,
    (node, one) => updateStatus(node.querySelector(".status"), one));
  keyed(view.passed, data.handoffs.toReversed(), (one) => one.id, handoffRow, updateHandoffRow);
  view.noLineage.hidden = Boolean(view.lineage.firstChild || view.passed.firstChild);
  keyed(view.deliveries, [...data.deliveries.values()], (one) => one.id, notice, updateNotice);
  view.noDeliveries.hidden = Boolean(view.deliveries.firstChild);
}

/** Its steps. Whether there is a place for them is settled when the page opens, so that nothing moves later. */
function drawWork(view, data) {
  const steps = data.work.steps.filter((one) =>
    one.kind !== "turn" || usageText(one.usage) || data.work.steps.length > 1);
  const seen = steps.filter((one) => one.kind !== "turn" || steps.length > 1);
  if (view.workPanel.dataset.open === undefined) {
    view.workPanel.dataset.open = String(isOpen(data.task));
    view.workPanel.hidden = !isOpen(data.task) && !seen.length;
    view.workStuck = isOpen(data.task);
  }
  view.noWork.hidden = seen.length > 0;
  say(view.workCount, seen.filter((one) => one.kind === "tool").length || "").title = "tools used";
  drawSteps(view.work, seen);
  if (view.workStuck) view.workBody.scrollTop = view.workBody.scrollHeight;
}

/** The one of the two that is seen. */
function drawEvents(view, data) {
  const events = inOrder(data);
  if (view.waterfall.hidden) keyed(view.events, events, (event) => event.seq, eventRow);
  else view.waterfall.show(events);
}

function drawButtons(view, data) {
  const { task } = data;
  const wanted = isOpen(task) ? "cancel" : task.status === "done" ? "again" : "retry";
  if (view.buttons.dataset.shown === wanted + task.session_key) return;
  view.buttons.dataset.shown = wanted + task.session_key;
  const again =
    `/tasks/new?${new URLSearchParams({ prompt: task.prompt, agent: task.agent, workdir: task.workdir ?? "" })}`;
  view.buttons.replaceChildren(h("button", { type: "button", onclick: () => handOver(data.task) }, "Hand over"), ...{
    cancel: [actButton("Cancel", () => cancel(data.task), { kind: "danger", iconName: "stop" })],
    retry: [
      h("a.button", { href: again }, "Edit and submit"),
      actButton("Retry", () => retry(data.task), { kind: "primary", iconName: "retry" }),
    ],
    again: task.prompt.length < 4000 ? [h("a.button", { href: again }, "Submit again")] : [],
  }[wanted]);
}

async function cancel(task) {
  if (!(await confirmed("Stop this task? Its agent is interrupted; what it has done stays.", "Cancel the task")))
    return;
  await post(`/tasks/${task.id}/cancel`);
}

async function retry(task) {
  if (isSpent(task)) return void askMore(task);
  const lead = onward();
  const made = await post(`/tasks/${task.id}/retry`, {}, { key: wishKey() });
  toast("Handed in again.");
  lead(`/tasks/${made.id}`);
}

function drawOutput(view, data) {
  const { task } = data;
  const kind = isOpen(task) ? "partial" : task.status === "done" ? "result" : "error";
  say(view.outputTitle,
    { partial: "Output", result: "Result", error: task.status === "failed" ? "Error" : "Cancelled" }[kind]);
  if (kind === "partial") {
    if (view.output.dataset.kind !== "partial")
      view.output.replaceChildren(h("p.faint.none"), h("div.said", { "aria-live": "off" }));
    const [none, text] = view.output.children;
    none.hidden = Boolean(data.partial);
    say(none, task.status === "running" ? "It has not written anything yet." : "It has not started yet.");
    grow(text, data.partial ?? "");
  } else if (kind === "result") {
    if (view.output.shown === (data.result_html ?? task.result)) return;
    view.output.shown = data.result_html ?? task.result;
    if (data.result_html) view.output.replaceChildren(insertSanitised(h("div.page-text"), data.result_html));
    else view.output.replaceChildren(task.result ? h("div.said", task.result) : h("p.faint", ...endOf(task)));
  } else if (view.output.shown !== `error ${task.error}`) {
    view.output.shown = `error ${task.error}`;
    view.output.replaceChildren(
      h("div.said", { class: task.status === "failed" ? "problem" : "faint" },
        task.error || (task.status === "failed" ? `It failed: ${task.outcome}.` : "It was cancelled.")),
      data.partial ? h("details", h("summary", "What it had written"), h("div.said", data.partial)) : "");
  }
  view.output.dataset.kind = kind;
}

/** What is said of a task that is done and has no text. */
function endOf({ outcome, transferred_to: next }) {
  if (next) return ["The conversation went to another agent: ", h("a", { href: `/tasks/${next}` }, "go on there"), "."];
  return [outcome === "silent" ? "It had nothing to say (silent)." : "It ended without a text."];
}

function causeOf({ cause, cause_id: id }) {
  return id && ["automation", "goal", "handoff"].includes(cause) ? h("a", { href: `/${cause}s/${id}` }, cause) : cause;
}

function drawFacts(list, task) {
  const facts = [
    ["Agent", task.agent], ["Directory", task.workdir],
    ["Session", task.session_key && !task.session_key.startsWith("bg:") ? sessionLink(task.session_key) : null],
    ["Cause", causeOf(task)], ["Route", task.route], ["Priority", task.priority || null],
    ["Timeout", task.timeout_seconds ? length(task.timeout_seconds) : null],
    ["Submitted", `${dateTime(task.created_at)}${task.creator ? ` by ${task.creator}` : ""}`],
    ["Due", task.due_at > task.created_at && !task.started_at ? dateTime(task.due_at) : null],
    // these stand from the start, so that nothing moves
    ["Started", dateTime(task.started_at)], ["Ended", dateTime(task.completed_at)],
    ["Attempt", `${task.attempt || "–"}${task.failures ? `, ${task.failures} failed` : ""}`],
    ["Usage", usageText(task.usage) || (isOpen(task) ? "–" : "unknown: its agent told nothing")],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  keyed(list, facts, ([name]) => name, ([name]) => h("div.fact", h("dt", name), h("dd")), (node, [, value]) => {
    if (value instanceof Node) {
      if (node.lastChild.textContent !== value.textContent) node.lastChild.replaceChildren(value);
    } else say(node.lastChild, value);
  });
}

function eventRow(event) {
  return h("tr", { data: { tone: tone(event) } }, h("td.num.faint", event.seq),
    h("td.num.faint", { title: dateTime(event.time) }, timeOfDay(event.time)), h("td", h("code", event.kind)),
    h("td", line(event)));
}
