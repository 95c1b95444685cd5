// One session: its live conversation with the work of the agent, its queue, and the form for messages.

import { buildQuery, encodeSegment, get, post, trackRequests } from "../api.js";
import { renderApprovals } from "../approval.js";
import { createComposer } from "../compose.js";
import { getFirstLine, h, isScrolledToEnd, limitToFrame, renderKeyed, setText } from "../dom.js";
import { formatMissingUsage, formatUsage } from "../figures.js";
import {
  confirmAction, createActionButton, createAgo, createElapsed, createSkeleton, createTaskLink, focusFirst,
  setAttribute, showToast,
} from "../parts.js";
import { Partial } from "../partial.js";
import { desk } from "../desk.js";
import { applyEvent, createTask } from "../model.js";
import { getAgentApiPath, singleSession } from "../place.js";
import { loadSnapshot, stream } from "../stream.js";
import { renderConversation } from "../conversation.js";
import { formatTime } from "../time.js";
import { Work, WORK_KINDS } from "../work.js";
import { createAttachButton, createTerminal } from "../terminal.js";

const MESSAGES_READ = 1000;
const MAX_RECENT = 500;
const EARLIER_COUNT = 100;
const WIDE_SCREEN = "(min-width: 64rem)"; // the terminal fits next to the conversation
const EVENTS_READ = 1000; // events of the agent's work that are loaded at once

export default async function renderSession(main, page) {
  const key = page.params.key;
  page.setTitle(key);
  main.className = "session-page";
  const stop = new AbortController();
  page.onLeave(() => stop.abort());
  const data = {
    session: null, messages: new Map(), html: new Map(), partials: new Map(), queue: new Map(), steers: new Map(),
    running: null, ended: new Set(), errors: [], recent: [], seq: 0, work: new Work(), events: null,
  };
  const view = buildPage(key, data);
  main.append(createSkeleton(8));
  const draw = limitToFrame(() => page.isCurrent() && data.read && drawAll(view, data, page));
  const startUsageRequest = trackRequests();
  const readUsage = async () => {
    const { accept } = startUsageRequest();
    const reply = await get(`/usage${buildQuery({ session_key: key, since: "1970-01-02T00:00:00Z", by: "session" })}`,
      { signal: stop.signal }).catch(() => null);
    if (reply && accept()) { data.usage = reply.total; draw(); }
  };
  let reading = false;
  let again = false;
  const read = async () => {
    again = reading; // the reply under way may be older than this call
    if (reading) return;
    reading = true;
    try {
      const known = { partials: new Set(data.partials.keys()), screen: data.screen };
      applyState(data, await loadSnapshot({ session_key: key }, stop.signal), known, () => read().catch(() => {}));
      // before drawing, so that no raw Markdown is shown and nothing moves
      await Promise.all([
        readHtml(key, data, stop.signal).catch(() => {}),
        data.events ? null : readWork(key, data, stop.signal).catch(() => {}),
      ]);
      data.read = true;
      draw();
    } finally {
      reading = false;
      if (again) read().catch(() => {});
    }
  };
  page.onLeave(stream.on({
    event: (event) => {
      if (event.session_key !== key) return;
      data.recent.push(event);
      // also before the session is loaded
      if (event.kind === "task_finished") { data.ended.add(event.task_id); readUsage(); }
      if (data.recent.length > MAX_RECENT) data.recent.shift();
      if (!data.session) return;
      recordEvent(data, event);
      if (data.events) { data.events.push(event); data.work.handle(event); }
      if (event.kind === "message_update" && event.payload.number)
        readHtml(key, data, stop.signal).then(draw).catch(() => {});
      draw();
    },
    live: (event) => {
      if (event.session_key !== key) return;
      // also before the session is loaded, because live events are sent only once
      if (event.kind === "thought_delta" && data.work.handle(event)) draw();
      data.last = event.time;
      if (event.kind === "message_delta") {
        const { message_id: id } = event.payload;
        if ([...data.messages.values()].some((message) => message.id === id)) return;
        if (!data.partials.has(id)) data.partials.set(id, new Partial(() => read().catch(() => {})));
        if (data.partials.get(id).add(event.payload)) draw();
      } else if (event.kind === "screen_update") { data.screen = event.payload.screen; draw(); }
    },
    state: () => { if (data.session && (data.running || data.partials.size)) read().catch(() => {}); },
    reset: () => { data.events = null; read().catch(() => {}); },
  }));
  view.modes.node.addEventListener("change", draw);
  page.onLeave(desk.on("activity", draw));
  page.onLeave(renderApprovals(view.approvals,
    { filter: (approval) => approval.session_key === key, onChange: () => scrollToEnd(view) }));
  view.send = async (text, requestKey, mode) => {
    const task = await post(`/sessions/${encodeSegment(key)}/messages`, { text, mode }, { key: requestKey });
    if (!task.steer && !data.queue.has(task.id) && data.running?.id !== task.id && !data.ended.has(task.id))
      data.queue.set(task.id, task);
    view.isAtEnd = true;
    draw();
  };
  view.showTerminal = (isVisible) => {
    view.terminal?.stop.abort();
    view.terminal?.node.remove();
    view.terminal = null;
    if (isVisible) {
      view.terminal = { ...createTerminal(key), stop: new AbortController() };
      view.body.append(view.terminal.node);
      view.terminal.follow(view.terminal.stop.signal);
    }
    main.classList.toggle("with-terminal", isVisible);
    view.showTerminalButton.setAttribute("aria-pressed", String(isVisible));
    draw();
  };
  page.onLeave(() => view.terminal?.stop.abort());
  const session = await get(`/sessions/${encodeSegment(key)}`); // shows Not found for an unknown session
  if (!page.isCurrent()) return;
  page.setTitle(session.title || key);
  data.steerable = session.steerable;
  reserveSpace(view, data.steerable && !isClosed(session)); // before it is shown, so that nothing moves
  main.replaceChildren(...view.parts);
  await Promise.all([read(), readUsage()]);
  if (desk.may.act && page.isCurrent()) focusFirst(view.input);
  const { transport } = await get("/status", { from: getAgentApiPath(key), signal: stop.signal }).catch(() => ({}));
  view.showTerminalButton.hidden = transport !== "pty";
  if (transport === "pty" && singleSession && matchMedia(WIDE_SCREEN).matches) view.showTerminal(true);
}

/** Apply the state of the session from the stream. What is not in `known` arrived after the request and is newer. */
function applyState(data, state, known, missing) {
  data.session = state.session;
  for (const message of state.messages) data.messages.set(message.number,
    { ...data.messages.get(message.number), ...message });
  const before = data.partials;
  data.partials = new Map();
  for (const written of state.partial ?? []) {
    const partial = before.get(written.message_id) ?? new Partial(missing);
    partial.replace(written);
    data.partials.set(written.message_id, partial);
  }
  const messageIds = new Set([...data.messages.values()].map((message) => message.id));
  const isNew = (id) =>
    !known.partials.has(id) && !data.partials.has(id) && !messageIds.has(id) && !data.ended.has(id.split(".")[0]);
  for (const [id, partial] of before) if (isNew(id)) data.partials.set(id, partial);
  data.queue = new Map((state.queue ?? []).map((task) => [task.id, task]));
  data.steers = new Map((state.steers ?? []).map((steer) => [steer.id, steer]));
  data.running = state.running;
  if (data.screen === known.screen) data.screen = state.screen ?? null;
  data.errors = state.errors ?? [];
  data.seq = state.as_of_seq;
  for (const event of data.recent) recordEvent(data, event); // the state may be older than the latest events
}

function recordEvent(data, event) {
  if (event.seq <= data.seq) return;
  data.seq = event.seq;
  data.last = event.time;
  const { kind, payload, task_id: id } = event;
  recordSteers(data.steers, event);
  if (kind === "message_update" && payload.number) {
    data.messages.set(payload.number, {
      number: payload.number, id: payload.message_id, role: payload.role,
      author: payload.role === "user" ? event.actor : event.agent_id, text: payload.message, cut: payload.cut,
      time: event.time, task_id: id,
    });
    data.partials.delete(payload.message_id);
  } else if (kind === "task_submitted") data.queue.set(id, createTask(event));
  else if (kind === "task_started") {
    data.running = applyEvent(data.queue.get(id) ?? createTask(event), event);
    data.queue.delete(id);
    data.session = { ...data.session, status: "busy" };
  } else if (kind === "task_finished") {
    data.queue.delete(id);
    for (const name of [...data.partials.keys()]) if (name.startsWith(`${id}.`)) data.partials.delete(name);
    if (data.running?.id === id) data.running = null;
    if (!data.running && data.session.status !== "closed") data.session = { ...data.session, status: "idle" };
  } else if ([
    "task_waiting", "task_interrupted", "task_rescued", "interrupt_received", "approval_resolved",
  ].includes(kind) && data.running?.id === id) {
    const next = applyEvent(data.running, event);
    if (next.status === "running") data.running = next;
    else { data.running = null; data.queue.set(id, next); }
    data.session = {
      ...data.session, status: next.wait === "approval" ? "asking" : next.status === "running" ? "busy" : "idle",
    };
  } else if (kind === "session_closed") data.session = { ...data.session, status: "closed" };
  else if (kind === "agent_error") data.errors = [...data.errors, { ...payload, time: event.time }].slice(-100);
  if (kind === "task_interrupted" || kind === "task_rescued")
    for (const name of [...data.partials.keys()]) if (name.startsWith(`${id}.`)) data.partials.delete(name);
}

/** Track the messages that the running turn has not received yet. */
function recordSteers(steers, { kind, payload, task_id: id }) {
  if (kind === "interrupt_received" && payload.steer_id)
    steers.set(payload.steer_id, { id: payload.steer_id, task_id: id, mode: payload.reason });
  else if (kind === "steering_injected") for (const steerId of payload.steer_ids) steers.delete(steerId);
  else if (kind === "task_finished")
    for (const steer of [...steers.values()]) if (steer.task_id === id) steers.delete(steer.id);
}

/** Load the HTML of messages from the server, which renders Markdown. */
async function readHtml(key, data, signal) {
  const numbers = [...data.messages.values()]
    .filter((message) => (message.role !== "user" || message.cut) && !data.html.has(message.number))
    .map((message) => message.number);
  if (!numbers.length) return;
  const { messages } = await get(
    `/sessions/${encodeSegment(key)}/messages?html=true&after=${Math.min(...numbers) - 1}&limit=${MESSAGES_READ}`,
    { signal });
  for (const message of messages)
    if (message.html != null && (message.role !== "user" || data.messages.get(message.number)?.cut))
      data.html.set(message.number, message.html);
}

/** Load the newest events of the agent's work, or those before the known ones. */
async function readWork(key, data, signal) {
  const before = data.events?.[0]?.seq ?? Number.MAX_SAFE_INTEGER;
  const parameters = buildQuery({ session_key: key, kind: WORK_KINDS, before, limit: EVENTS_READ });
  const { events } = await get(`/events${parameters}`, { signal });
  data.events = [...events, ...(data.events ?? data.recent.filter((event) => event.seq > (events.at(-1)?.seq ?? 0)))];
  const messageTimes = [...data.messages.values()].map((message) => message.time);
  data.work.reset(data.events, messageTimes.sort().at(-1));
}

async function readEarlier(view, key, data) {
  const first = Math.min(...data.messages.keys());
  const { messages } = await get(
    `/sessions/${encodeSegment(key)}/messages?html=true&after=${Math.max(0, first - 1 - EARLIER_COUNT)}` +
      `&limit=${Math.min(EARLIER_COUNT, first - 1)}`,
  );
  for (const message of messages) {
    data.messages.set(message.number, message);
    if (message.role !== "user") data.html.set(message.number, message.html);
  }
  await readWork(key, data).catch(() => {});
  const height = view.scroller.scrollHeight;
  renderConversation(view, data, false);
  view.scroller.scrollTop += view.scroller.scrollHeight - height; // keep the scroll position
}

function buildPage(key, data) {
  const view = {
    title: h("h1.truncate", key), status: h("span.status"), time: createElapsed(null), last: createAgo(null),
    activity: h("span.truncate.dim"), sub: h("p.session-sub.faint.truncate"),
    conversation: h("ol.conversation"), partials: h("ol.conversation", { "aria-live": "off" }),
    approvals: h("div.approvals.in-place", { hidden: true }), queue: h("ol.queue", { "aria-label": "Queue" }),
    errors: h("details.errors", { hidden: true }), screen: h("pre.screen", { hidden: true }),
    loading: createSkeleton(5),
    isAtEnd: true,
  };
  view.interrupt = createActionButton("Interrupt", async () => {
    const { interrupted, resume } = await post(`/sessions/${encodeSegment(key)}/interrupt`);
    showToast(resume ? `Interrupted. Continue with: ${resume}`
      : interrupted ? "Interrupted. The queue continues."
      : "Nothing was running.");
  }, { kind: "action", iconName: "stop", title: "Stop the running turn; the queue continues" });
  view.stopSoon = createActionButton("Stop after this step", async () => {
    const { interrupted } = await post(`/sessions/${encodeSegment(key)}/interrupt`, { mode: "stop" });
    showToast(interrupted ? "The agent will give a final answer without using more tools." : "Nothing was running.");
  }, { kind: "action", iconName: "pause", title: "Let the agent give a final answer without using more tools" });
  view.close = createActionButton("Close", async () => {
    if (await confirmAction("Close this session? Its running and queued tasks are cancelled.", "Close session"))
      data.session = await post(`/sessions/${encodeSegment(key)}/close`);
  }, { kind: "danger action" });
  Object.assign(view, createComposer((...message) => view.send(...message)));
  if (singleSession) view.button.before(...createAttachButton(key, view.input));
  view.earlier = createActionButton("Load earlier messages", () => readEarlier(view, key, data), { kind: "quiet" });
  view.earlier.hidden = true;
  view.scroller = h("div.conversation-scroll", { tabindex: "0", role: "log", "aria-label": "Conversation" },
    view.loading,
    view.earlier, view.conversation, view.partials, view.screen, view.approvals);
  view.scroller.addEventListener("scroll", () => {
    view.isAtEnd = isScrolledToEnd(view.scroller, 60);
  }, { passive: true });
  view.showTerminalButton = createActionButton("Terminal", () => view.showTerminal(!view.terminal),
    { iconName: "terminal", title: "Show the terminal and type in it" });
  view.showTerminalButton.hidden = true;
  view.body = h("div.session-body",
    h("section.panel.conversation-panel", view.scroller,
      h("div.conversation-foot", view.errors, view.queue, view.modes.node, view.form)));
  view.parts = [
    h("div.page-head",
      singleSession ? null : h("nav.crumbs", { "aria-label": "Breadcrumb" }, h("a", { href: "/sessions" }, "Sessions")),
      view.title, h("span.spacer"),
      h("span.task-buttons", view.showTerminalButton, view.stopSoon, view.interrupt,
        singleSession ? null : view.close)),
    view.sub,
    h("p.task-line", view.status, h("span", view.time), h("span.dim", "last activity ", view.last), view.activity),
    view.body];
  return view;
}

function scrollToEnd(view) {
  if (view.isAtEnd) view.scroller.scrollTop = view.scroller.scrollHeight;
}

const isClosed = ({ status }) => status === "closed" || status === "lost";

/** Reserve space for the controls of a running turn, so that nothing moves when a turn starts. */
function reserveSpace(view, room, steerable = false) {
  view.stopSoon.hidden = !room;
  view.stopSoon.classList.toggle("idle", !steerable);
  view.modes.offer(steerable, Boolean(room));
}

function drawAll(view, data, page) {
  const { session: renderSession, running } = data;
  const closed = isClosed(renderSession);
  page.setTitle(renderSession.title || renderSession.key);
  setText(view.title, renderSession.title || renderSession.key);
  const used = [formatUsage(data.usage), formatMissingUsage(data.usage)].filter(Boolean).join(", ");
  setText(view.sub,
    [
      renderSession.title ? renderSession.key : null, `with ${renderSession.agent}`, renderSession.workdir,
      used && formatUsage(data.usage) ? `used ${used}` : null,
    ].filter(Boolean).join("  ·  ")).title = view.sub.textContent;
  view.status.dataset.status = renderSession.status;
  setText(view.status, renderSession.status);
  setAttribute(view.time, "from", running?.started_at ?? null);
  const activity = running ? desk.activity.get(running.id) : null;
  setAttribute(view.last, "at", data.last ?? activity?.at ?? renderSession.updated_at);
  setText(view.activity, activity?.text ?? "");
  const steerable = Boolean(running && data.steerable && !closed);
  view.interrupt.disabled = !running;
  setText(view.interrupt.lastChild, steerable ? "Abort now" : "Interrupt");
  reserveSpace(view, data.steerable && !closed, steerable);
  view.stopSoon.disabled = [...data.steers.values()].some((steer) => steer.mode === "stop");
  view.close.disabled = closed;
  view.loading.remove();
  view.approvals.hidden = false; // below the messages, so not before them
  renderConversation(view, data, closed);
  renderKeyed(view.queue, [...data.queue.values()].sort((a, b) => (a.id < b.id ? -1 : 1)), (task) => task.id,
    createQueuedRow);
  view.screen.hidden = !data.screen || !running || Boolean(view.terminal);
  if (data.screen) setText(view.screen, data.screen);
  drawErrors(view.errors, data.errors);
  view.input.placeholder = closed ? "This session is closed"
    : running && !steerable ? "Write a message for the queue"
    : "Write a message";
  view.input.disabled = closed;
  view.button.disabled = closed;
  setText(view.button.lastChild, running && view.modes.mode() === "after_turn" ? "Queue" : "Send");
  scrollToEnd(view);
}

function createQueuedRow(task) {
  return h("li.queued", h("span.tag", "queued"), h("span.truncate", getFirstLine(task.prompt)), h("span.spacer"),
    createTaskLink(task.id, "task"),
    createActionButton("", () => post(`/tasks/${task.id}/cancel`),
      { kind: "icon-button action", iconName: "cross", title: "Remove from the queue" }));
}

function drawErrors(node, errors) {
  node.hidden = !errors.length;
  if (!errors.length) return;
  if (!node.firstChild) node.append(h("summary"), h("ul"));
  setText(node.firstChild,
    errors.length > 1 ? `${errors.length} warnings or errors from the agent`
      : `1 ${errors[0].level === "warning" ? "warning" : "error"} from the agent`);
  renderKeyed(node.lastChild, errors.map((error, at) => ({ ...error, at })), (error) => `${error.time}${error.at}`,
    (error) => h("li", { class: error.level === "warning" ? "dim" : "bad-text" },
      `${formatTime(error.time)} ${error.message}`));
}

