// One task: its prompt, work, output and timeline.

import { get, post, trackRequests } from "../api.js";
import { createNavigator } from "../app.js";
import { renderApprovals } from "../approval.js";
import { createUsed, drawBudget, isSpent, listBudgetParameters, openBudgetForm, sumSpent } from "../budget.js";
import {
  createRequestKey, getFirstLine, h, insertSanitised, isScrolledToEnd, limitToFrame, renderKeyed, setProps, setText,
} from "../dom.js";
import { formatUsage } from "../figures.js";
import { addHandoffWork, createNotice, createRelative, updateNotice } from "../lineage.js";
import { applyEvent, formatEvent, formatWait, getTone, isOpen } from "../model.js";
import { createHandoffRow, openHandoffForm, updateHandoffRow } from "../handoff-parts.js";
import { drawOutput } from "../output.js";
import {
  confirmAction, createActionButton, createAgo, createCopyButton, createDetailHead, createElapsed, createEmpty,
  createPanel, createSegments, createSessionLink, createSkeleton, createStatus, formatPrompt, renderFacts,
  setAttribute, showToast, updateElapsed, updateStatus,
} from "../parts.js";
import { Partial } from "../partial.js";
import { createProbePanel } from "../probe-parts.js";
import { isBelow } from "../spans.js";
import { drawSteps } from "../steps.js";
import { loadSnapshot, stream } from "../stream.js";
import { formatDateTime, formatPeriod, formatTime, now } from "../time.js";
import "../waterfall.js";
import { Work } from "../work.js";
import { createWorktreePanel } from "../worktree.js";

const EVENTS_READ = 5000;
const CHILDREN_READ = 30;

export default async function renderTask(main, page) {
  const id = page.params.id;
  page.setTitle("Task");
  main.className = "task-page";
  const stop = new AbortController();
  page.onLeave(() => stop.abort());
  const data = {
    id, task: null, events: new Map(), children: new Map(), deliveries: new Map(), lineage: [], handoffs: [],
    early: [], last: null, work: new Work(),
  };
  const view = buildPage(main, data, page);
  const draw = limitToFrame(() => page.isCurrent() && data.read && drawAll(view, data, page));
  const readPartial = async () => {
    const { id: partialId } = partial;
    const state = await loadSnapshot({ task_id: id }, stop.signal).catch(() => null);
    if (!state?.partial || !page.isCurrent()) return;
    const isNewer = partial.id !== partialId && partial.id !== state.partial.message_id; // a newer text has begun
    if (!isNewer && partial.replace(state.partial)) showPartial();
  };
  let reading = false;
  const partial = new Partial(async () => {
    if (reading) return;
    reading = true;
    await readPartial();
    reading = false;
  });
  const showOutput = () => drawOutput(view.output, view.outputTitle, data);
  const showPartial = limitToFrame(() => { data.partial = partial.text; showOutput(); });
  const handleEvent = (event) => {
    if (event.task_id !== id && !isBelow(event, id)) return;
    if (!data.read) return void data.early.push(event);
    recordEvent(data, event);
    if (affectsPage(event)) readPage().catch(() => {});
    draw();
  };
  const startRequest = trackRequests();
  const readPage = async () => {
    const { accept } = startRequest();
    const reply = await get(`/tasks/${id}/page`, { signal: stop.signal });
    if (!accept()) return;
    Object.assign(data, {
      task: reply.task, prompt_html: reply.prompt_html, result_html: reply.result_html, lineage: addHandoffWork(reply),
      handoffs: reply.handoffs, account: { ...reply.account, read_at: now() },
    });
    catchUp(data);
    data.last ??= reply.last_event_at;
    for (const delivery of reply.deliveries) data.deliveries.set(delivery.id, delivery);
    draw();
  };
  const readAll = async () => {
    await Promise.all([readPage().then(() => readChildren(data, stop.signal)), readEvents(id, data, stop.signal)]);
    data.work.reset(sortEvents(data));
    const early = data.early.splice(0);
    for (const event of early) recordEvent(data, event);
    catchUp(data);
    if (early.some(affectsPage)) readPage().catch(() => {});
    data.read = true; // only now: the layout depends on whether the task has steps
    draw();
    if (data.task.status === "running") await readPartial();
  };
  page.onLeave(stream.on({
    event: handleEvent,
    live: (event) => {
      if (event.task_id !== id) return;
      // also before the task is loaded, because live events are sent only once
      if (event.kind === "thought_delta" && data.work.handle(event)) draw();
      if (event.kind === "screen_update") {
        data.partial = event.payload.screen;
        if (data.read) showOutput();
      }
      if (!data.task) return;
      data.last = event.time;
      if (event.kind === "message_delta" && partial.add(event.payload)) showPartial();
      setAttribute(view.last, "at", data.last);
    },
    state: () => data.task?.status === "running" && readPartial(),
    reset: () => readAll().catch(() => {}),
  }));
  page.onLeave(renderApprovals(view.approvals, { filter: (approval) => approval.task_id === id, withTask: false }));
  await readAll();
}

async function readEvents(id, data, signal) {
  let last = 0;
  while (data.events.size < EVENTS_READ) {
    const { events, next } = await get(`/events?task_id=${id}&after=${last}&limit=1000`, { signal });
    for (const event of events) data.events.set(event.seq, event);
    if (next === null) break;
    last = next;
  }
  data.last = [...data.events.values()].at(-1)?.time ?? data.last;
}

/** Read the events of the work that grew out of the task. */
async function readChildren(data, signal) {
  const below = data.lineage.filter((relative) => isBelow({ ...relative, task_id: relative.id }, data.id));
  await Promise.all(below.slice(0, CHILDREN_READ).map(async ({ id }) => {
    const { events } = await get(`/events?task_id=${id}&limit=1000`, { signal });
    for (const event of events) recordChild(data, event);
  }));
}

function recordChild(data, event) {
  if (!data.children.has(event.task_id)) data.children.set(event.task_id, new Map());
  data.children.get(event.task_id).set(event.seq, event);
}

const sort = (events) => [...events.values()].sort((a, b) => a.seq - b.seq);
const sortEvents = (data) => sort(data.events);

/** Return whether an event changes data that it does not contain itself. */
const affectsPage = ({ kind }) => kind === "task_finished" || kind === "task_submitted" || kind.startsWith("handoff_");

/** Apply known events to the task, because a reply may be older than they are. */
function catchUp(data) {
  for (const event of sortEvents(data)) data.task = applyEvent(data.task, event);
}

function recordEvent(data, event) {
  if (event.task_id !== data.id) return recordChild(data, event);
  if (!data.events.has(event.seq)) data.events.set(event.seq, event);
  data.work.handle(event);
  data.last = event.time;
  data.task = applyEvent(data.task, event);
  if (event.kind === "task_started" && data.read) data.partial = null;
  if (event.kind === "message_update" && event.payload.role === "agent" && isOpen(data.task))
    data.partial = event.payload.message;
  if (event.kind === "delivery_sent" || event.kind === "delivery_failed") {
    const { delivery_id, channel, notice, error } = event.payload;
    const delivery = data.deliveries.get(delivery_id) ?? { id: delivery_id, channel, notice };
    const sent = event.kind === "delivery_sent";
    data.deliveries.set(delivery_id,
      { ...delivery, status: sent ? "sent" : "failed", error: error ?? null, sent_at: sent ? event.time : null });
  }
}

function buildPage(main, data, page) {
  const view = {
    status: setProps(createStatus({ status: "" }), { role: "status" }), title: h("h1.truncate", "…"),
    id: h("code.faint", page.params.id), time: createElapsed(null), last: createAgo(null), wait: h("span.dim"),
    due: createAgo(null),
    buttons: h("span.task-buttons.action"), approvals: h("div.approvals.in-place", { "aria-live": "polite" }),
    facts: h("dl.facts"), shared: h("p.faint.shared-budget", { hidden: true }, "Budget of the whole work"),
    budget: h("div.budget.task-budget", { hidden: true, role: "group", "aria-label": "Budget" }),
    lineage: h("ol.rows"), handoffs: h("ol.rows", { "aria-label": "Handoffs" }), deliveries: h("ol.rows"),
    prompt: h("div.page-text.clamped"), output: h("div.output"), waterfall: document.createElement("mw-waterfall"),
    events: h("tbody"),
  };
  const table = h("div.events-table.scroll-x", { hidden: true }, h("table.plain",
    h("thead", h("tr", h("th", "seq"), h("th", "time"), h("th", "event"), h("th", "details"))), view.events));
  const tabs = createSegments("View", [["waterfall", "Waterfall"], ["list", "List"]], "waterfall", (name) => {
    view.waterfall.hidden = name !== "waterfall";
    table.hidden = name === "waterfall";
    drawEvents(view, data);
  });
  tabs.classList.add("small");
  const more = h("button.quiet.show-all",
    { type: "button", hidden: true, onclick: () => { view.prompt.classList.remove("clamped"); more.hidden = true; } },
    "Show all");
  view.more = more;
  const prompt = createPanel("Prompt", {
    content: [view.prompt, more], actions: [createCopyButton(() => data.task?.prompt ?? "", "Copy the prompt")],
  });
  const work = createPanel("Work", {
    name: "task-work", count: true, actions: [createExpand("Work", () => view.workBody)],
  });
  Object.assign(view, {
    workPanel: work.node, workBody: work.body, workCount: work.counter, work: h("ol.steps-list"),
    noWork: h("p.faint", "Thoughts, plans and tools are shown here."),
  });
  setProps(work.body, { tabindex: "0", role: "log" });
  work.body.setAttribute("aria-label", "Work");
  work.body.classList.add("work-body");
  work.body.append(view.work, view.noWork);
  view.isWorkAtEnd = true;
  work.body.addEventListener("scroll", () => {
    view.isWorkAtEnd = isScrolledToEnd(work.body);
  }, { passive: true });
  view.worktree = createWorktreePanel(page);
  view.probe = createProbePanel();
  const output = createPanel("Output", {
    name: "task-output", content: [view.output],
    actions: [createCopyButton(() => data.task?.result ?? data.partial ?? "", "Copy the output")],
  });
  view.outputTitle = output.node.querySelector("h2");
  const timeline = createPanel("Timeline", {
    name: "timeline", actions: [createExpand("Timeline", () => timeline.body), tabs],
  });
  timeline.body.append(view.waterfall, table);
  const about = createPanel("About", { content: [view.shared, view.budget, view.facts] });
  view.noLineage = createEmpty("No related tasks", "Retries, parents, children and handoffs are listed here.");
  const lineage = createPanel("Related tasks");
  lineage.body.append(view.lineage, view.handoffs, view.noLineage);
  view.noDeliveries = createEmpty("No notices", "Set a notification channel to be notified when a task ends.");
  const deliveries = createPanel("Notices");
  deliveries.body.append(view.deliveries, view.noDeliveries);
  // hidden until the data has arrived, so that nothing moves
  view.body = h("div", { hidden: true }, createDetailHead("/tasks", "Tasks", view.title, view.buttons),
    h("p.task-line", view.status, h("span", view.time), h("span.dim", "last activity ", view.last),
      h("span.dim", view.wait, " ", view.due), h("span.spacer"), view.id),
    h("div.task-grid", h("div.stack", prompt.node, work.node, output.node, view.probe.node, view.worktree.node,
        view.approvals),
      h("div.stack", timeline.node, about.node, lineage.node, deliveries.node)));
  view.loading = createSkeleton(8);
  main.append(view.loading, view.body);
  return view;
}

/** Create a button that shows the whole content of a panel, or only its usual height. */
function createExpand(title, getBody) {
  const button = h("button.quiet.small", {
    type: "button", "aria-pressed": "false", "aria-label": `Expand ${title}`,
    onclick: () => button.setAttribute("aria-pressed", String(getBody().classList.toggle("expanded"))),
  }, "Expand");
  return button;
}

function drawAll(view, data, page) {
  const { task } = data;
  view.loading.remove();
  view.body.hidden = false;
  const title = task.prompt ? getFirstLine(formatPrompt(task), 100) : task.id;
  page.setTitle(title);
  setText(view.title, title).title = getFirstLine(task.prompt, 1000);
  updateStatus(view.status, task);
  updateElapsed(view.time, task);
  setAttribute(view.last, "at", data.last);
  const stop = task.stop_requested && isOpen(task) ? `Stopping (${task.stop_requested})` : "";
  setText(view.wait, formatWait(task) ?? stop);
  view.due.hidden = task.status !== "pending" || !(Date.parse(task.due_at) > Date.now());
  setAttribute(view.due, "at", task.due_at);
  drawButtons(view, data);
  if (data.drawnPrompt !== data.prompt_html) {
    insertSanitised(view.prompt, data.prompt_html);
    data.drawnPrompt = data.prompt_html;
    view.more.hidden = view.prompt.scrollHeight <= view.prompt.clientHeight + 4;
  }
  drawWork(view, data);
  view.worktree.show(task);
  view.probe.show(sortEvents(data));
  drawOutput(view.output, view.outputTitle, data);
  drawEvents(view, data);
  const spent = sumSpent(task, data.account, sortEvents(data));
  drawBudget(view.budget, task, data.account, spent);
  view.shared.hidden = view.budget.hidden || data.account.tasks.length < 2;
  drawFacts(view.facts, task, { ...data.account, ...spent, seconds: data.account.seconds });
  renderKeyed(view.lineage, data.lineage.filter((relative) => relative.relation !== "self"), (relative) => relative.id,
    createRelative,
    (node, relative) => updateStatus(node.querySelector(".status"), relative));
  renderKeyed(view.handoffs, data.handoffs.toReversed(), (handoff) => handoff.id, createHandoffRow, updateHandoffRow);
  view.noLineage.hidden = Boolean(view.lineage.firstChild || view.handoffs.firstChild);
  renderKeyed(view.deliveries, [...data.deliveries.values()], (delivery) => delivery.id, createNotice, updateNotice);
  view.noDeliveries.hidden = Boolean(view.deliveries.firstChild);
}

/** Show the steps. Whether there is a panel for them is decided when the page opens, so that nothing moves later. */
function drawWork(view, data) {
  const steps = data.work.steps.filter((step) =>
    step.kind !== "turn" || formatUsage(step.usage) || data.work.steps.length > 1);
  const visible = steps.filter((step) => step.kind !== "turn" || steps.length > 1);
  if (view.workPanel.dataset.open === undefined) {
    view.workPanel.dataset.open = String(isOpen(data.task));
    view.workPanel.hidden = !isOpen(data.task) && !visible.length;
    view.isWorkAtEnd = isOpen(data.task);
  }
  view.noWork.hidden = visible.length > 0;
  setText(view.workCount, visible.filter((step) => step.kind === "tool").length || "").title = "tools used";
  drawSteps(view.work, visible);
  if (view.isWorkAtEnd) view.workBody.scrollTop = view.workBody.scrollHeight;
}

/** Draw the visible one of the two views of the events. */
function drawEvents(view, data) {
  const events = sortEvents(data);
  if (view.waterfall.hidden) renderKeyed(view.events, events, (event) => event.seq, createEventRow);
  else {
    const children = [...data.children].map(([id, found]) => [id, sort(found)]);
    view.waterfall.show(data.id, new Map([[data.id, events], ...children]));
  }
}

function drawButtons(view, data) {
  const { task } = data;
  const action = isOpen(task) ? "cancel" : task.status === "done" ? "again" : "retry";
  if (view.buttons.dataset.state === action + task.session_key) return;
  view.buttons.dataset.state = action + task.session_key;
  const { prompt, agent, workdir } = task;
  const parameters = { prompt, agent, workdir: workdir ?? "", ...listBudgetParameters(task) };
  const address = `/tasks/new?${new URLSearchParams(parameters)}`;
  view.buttons.replaceChildren(h("button", { type: "button", onclick: () => openHandoffForm(data.task) }, "Hand over"),
    ...{
    cancel: [createActionButton("Cancel", () => cancelTask(data.task), { kind: "danger", iconName: "stop" })],
    retry: [
      h("a.button", { href: address }, "Edit and submit"),
      createActionButton("Retry", () => retryTask(data.task, data.account.id), { kind: "primary", iconName: "retry" }),
    ],
    again: task.prompt.length < 4000 ? [h("a.button", { href: address }, "Submit again")] : [],
  }[action]);
}

async function cancelTask(task) {
  if (!(await confirmAction("Cancel this task? Its agent is interrupted. Finished work is kept.", "Cancel task")))
    return;
  await post(`/tasks/${task.id}/cancel`);
}

async function retryTask(task, accountId) {
  const navigate = createNavigator();
  const account = await get(`/budgets/${accountId}`); // the page may not have the last spending yet
  if (isSpent(account)) return void openBudgetForm(task, account);
  const retried = await post(`/tasks/${task.id}/retry`, {}, { key: createRequestKey() });
  showToast("Retry started.");
  navigate(`/tasks/${retried.id}`);
}

function createCause({ cause, cause_id: id }) {
  const place = { automation: "automations", goal: "goals", handoff: "handoffs", result: "tasks" }[cause];
  return id && place ? h("a", { href: `/${place}/${id}` }, cause) : cause;
}

function drawFacts(list, task, account) {
  renderFacts(list, [
    ["Agent", task.agent], ["Directory", task.workdir],
    ["Session", task.session_key && !task.session_key.startsWith("bg:") ? createSessionLink(task.session_key) : null],
    ["Cause", createCause(task)], ["Notify", task.route], ["Notices", task.notices],
    ["Priority", task.priority || null],
    ["Timeout", task.timeout_seconds ? formatPeriod(task.timeout_seconds) : null],
    ["Submitted", `${formatDateTime(task.created_at)}${task.creator ? ` by ${task.creator}` : ""}`],
    ["Due", task.due_at > task.created_at && !task.started_at ? formatDateTime(task.due_at) : null],
    // always shown, so that nothing moves
    ["Started", formatDateTime(task.started_at)], ["Ended", formatDateTime(task.completed_at)],
    ["Attempt", `${task.attempt || "–"}${task.failures ? `, ${task.failures} failed` : ""}`],
    ["Used", createUsed(task, account)],
  ]);
}

function createEventRow(event) {
  return h("tr", { data: { tone: getTone(event) } }, h("td.num.faint", event.seq),
    h("td.num.faint", { title: formatDateTime(event.time) }, formatTime(event.time)), h("td", h("code", event.kind)),
    h("td", formatEvent(event)));
}
