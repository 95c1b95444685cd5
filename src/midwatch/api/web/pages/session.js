// One session: the conversation as it happens, with what the agent thinks, plans and does, what waits in its queue, and
// a place to write.

import { asking, get, part, post, query } from "../api.js";
import { approvalList } from "../approval.js";
import { composer } from "../compose.js";
import { firstLine, h, keyed, perFrame, say } from "../dom.js";
import { untoldText, usageText } from "../figures.js";
import { actButton, agoOf, attribute, beginAt, confirmed, elapsed, skeleton, taskLink, toast } from "../parts.js";
import { Partial } from "../partial.js";
import { desk } from "../desk.js";
import { after, taskFrom } from "../model.js";
import { single, surface } from "../place.js";
import { snapshot, stream } from "../stream.js";
import { drawTalk } from "../talk.js";
import { attachButton, terminalPanel } from "../terminal.js";
import { timeOfDay } from "../time.js";
import { Work, WORK_KINDS } from "../work.js";

const READ = 1000;
const LATELY = 500;
const EARLIER = 100;
const WIDE = "(min-width: 64rem)"; // there is room for the terminal beside the conversation
const STEPS = 1000; // events of its work that are read at once

export default async function session(main, page) {
  const key = page.params.key;
  page.setTitle(key);
  main.className = "session-page";
  const stop = new AbortController();
  page.whenLeft(() => stop.abort());
  const data = {
    session: null, messages: new Map(), html: new Map(), partials: new Map(), queue: new Map(), steers: new Map(),
    running: null, ended: new Set(), errors: [], lately: [], seq: 0, work: new Work(), events: null,
  };
  const view = build(key, data);
  main.append(skeleton(8));
  const draw = perFrame(() => page.isShown() && data.read && drawAll(view, data, page));
  const askUsed = asking();
  const readUsed = async () => {
    const { isNext } = askUsed();
    const found = await get(`/usage${query({ session_key: key, since: "1970-01-02T00:00:00Z", by: "session" })}`,
      { signal: stop.signal }).catch(() => null);
    if (found && isNext()) { data.used = found.total; draw(); }
  };
  let reading = false;
  let again = false;
  const read = async () => {
    again = reading; // what is asked for now may be newer than the answer that is under way
    if (reading) return;
    reading = true;
    try {
      const known = { partials: new Set(data.partials.keys()), screen: data.screen };
      take(data, await snapshot({ session_key: key }, stop.signal), known, () => read().catch(() => {}));
      // first, so that Markdown is not seen raw and nothing moves
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
  page.whenLeft(stream.on({
    event: (event) => {
      if (event.session_key !== key) return;
      data.lately.push(event);
      if (event.kind === "task_finished") { data.ended.add(event.task_id); readUsed(); } // also before the rest is read
      if (data.lately.length > LATELY) data.lately.shift();
      if (!data.session) return;
      note(data, event);
      if (data.events) { data.events.push(event); data.work.take(event); }
      if (event.kind === "message_update" && event.payload.number)
        readHtml(key, data, stop.signal).then(draw).catch(() => {});
      draw();
    },
    live: (event) => {
      if (event.session_key !== key) return;
      // also before the rest is read: it is told once
      if (event.kind === "thought_delta" && data.work.take(event)) draw();
      data.last = event.time;
      if (event.kind === "message_delta") {
        const { message_id: id } = event.payload;
        if ([...data.messages.values()].some((one) => one.id === id)) return;
        if (!data.partials.has(id)) data.partials.set(id, new Partial(() => read().catch(() => {})));
        if (data.partials.get(id).add(event.payload)) draw();
      } else if (event.kind === "screen_update") { data.screen = event.payload.screen; draw(); }
    },
    state: () => { if (data.session && (data.running || data.partials.size)) read().catch(() => {}); },
    reset: () => { data.events = null; read().catch(() => {}); },
  }));
  view.modes.node.addEventListener("change", draw);
  page.whenLeft(desk.on("activity", draw));
  page.whenLeft(approvalList(view.approvals,
    { which: (one) => one.session_key === key, withTask: true, changed: () => stick(view) }));
  view.send = async (text, wish, mode) => {
    const task = await post(`/sessions/${part(key)}/messages`, { text, mode }, { key: wish });
    if (!task.steer && !data.queue.has(task.id) && data.running?.id !== task.id && !data.ended.has(task.id))
      data.queue.set(task.id, task);
    view.stuck = true;
    draw();
  };
  view.showTerminal = (wanted) => {
    view.terminal?.stop.abort();
    view.terminal?.node.remove();
    view.terminal = null;
    if (wanted) {
      view.terminal = { ...terminalPanel(key), stop: new AbortController() };
      view.body.append(view.terminal.node);
      view.terminal.follow(view.terminal.stop.signal);
    }
    main.classList.toggle("with-terminal", wanted);
    view.look.setAttribute("aria-pressed", String(wanted));
    draw();
  };
  page.whenLeft(() => view.terminal?.stop.abort());
  const found = await get(`/sessions/${part(key)}`); // an unknown session is told as such
  if (!page.isShown()) return;
  page.setTitle(found.title || key);
  data.steerable = found.steerable;
  makeRoom(view, data.steerable && !isClosed(found)); // before it is seen, so that nothing moves
  main.replaceChildren(...view.parts);
  await Promise.all([read(), readUsed()]);
  if (desk.may.act && page.isShown()) beginAt(view.input);
  const { transport } = await get("/status", { from: surface(key), signal: stop.signal }).catch(() => ({}));
  view.look.hidden = transport !== "pty";
  if (transport === "pty" && single && matchMedia(WIDE).matches) view.showTerminal(true);
}

/** The state of the session, as the stream tells it. `known` is what was there when it was asked for: the rest is
 * newer. */
function take(data, state, known, missing) {
  data.session = state.session;
  for (const one of state.messages) data.messages.set(one.number, { ...data.messages.get(one.number), ...one });
  const before = data.partials;
  data.partials = new Map();
  for (const one of state.partial ?? []) {
    const made = before.get(one.message_id) ?? new Partial(missing);
    made.take(one);
    data.partials.set(one.message_id, made);
  }
  const said = new Set([...data.messages.values()].map((one) => one.id));
  const isNew = (id) =>
    !known.partials.has(id) && !data.partials.has(id) && !said.has(id) && !data.ended.has(id.split(".")[0]);
  for (const [id, one] of before) if (isNew(id)) data.partials.set(id, one);
  data.queue = new Map((state.queue ?? []).map((task) => [task.id, task]));
  data.steers = new Map((state.steers ?? []).map((one) => [one.id, one]));
  data.running = state.running;
  if (data.screen === known.screen) data.screen = state.screen ?? null;
  data.errors = state.errors ?? [];
  data.seq = state.as_of_seq;
  for (const event of data.lately) note(data, event); // those after the state; it may be older than what came meanwhile
}

function note(data, event) {
  if (event.seq <= data.seq) return;
  data.seq = event.seq;
  data.last = event.time;
  const { kind, payload, task_id: id } = event;
  noteSteers(data.steers, event);
  if (kind === "message_update" && payload.number) {
    data.messages.set(payload.number, {
      number: payload.number, id: payload.message_id, role: payload.role, author: event.actor, text: payload.message,
      cut: payload.cut, time: event.time, task_id: id,
    });
    data.partials.delete(payload.message_id);
  } else if (kind === "task_submitted") data.queue.set(id, taskFrom(event));
  else if (kind === "task_started") {
    data.running = after(data.queue.get(id) ?? taskFrom(event), event);
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
    const next = after(data.running, event);
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

/** Messages that the running turn has not heard yet. */
function noteSteers(steers, { kind, payload, task_id: id }) {
  if (kind === "interrupt_received" && payload.steer_id)
    steers.set(payload.steer_id, { id: payload.steer_id, task_id: id, mode: payload.reason });
  else if (kind === "steering_injected") for (const one of payload.steer_ids) steers.delete(one);
  else if (kind === "task_finished")
    for (const one of [...steers.values()]) if (one.task_id === id) steers.delete(one.id);
}

/** Markdown is rendered by the server, for the messages that have no page yet. */
async function readHtml(key, data, signal) {
  const lacking = [...data.messages.values()]
    .filter((one) => (one.role !== "user" || one.cut) && !data.html.has(one.number))
    .map((one) => one.number);
  if (!lacking.length) return;
  const { messages } = await get(
    `/sessions/${part(key)}/messages?html=true&after=${Math.min(...lacking) - 1}&limit=${READ}`, { signal });
  for (const one of messages)
    if (one.html != null && (one.role !== "user" || data.messages.get(one.number)?.cut))
      data.html.set(one.number, one.html);
}

/** The newest events of its agents' work, or those before the ones that are known. */
async function readWork(key, data, signal) {
  const before = data.events?.[0]?.seq ?? Number.MAX_SAFE_INTEGER;
  const { events } = await get(`/events${query({ session_key: key, kind: WORK_KINDS, before, limit: STEPS })}`,
    { signal });
  data.events = [...events, ...(data.events ?? data.lately.filter((one) => one.seq > (events.at(-1)?.seq ?? 0)))];
  const said = [...data.messages.values()].map((one) => one.time);
  data.work.reset(data.events, said.sort().at(-1));
}

async function readEarlier(view, key, data) {
  const first = Math.min(...data.messages.keys());
  const { messages } = await get(
    `/sessions/${part(key)}/messages?html=true&after=${Math.max(0, first - 1 - EARLIER)}` +
      `&limit=${Math.min(EARLIER, first - 1)}`,
  );
  for (const one of messages) {
    data.messages.set(one.number, one);
    if (one.role !== "user") data.html.set(one.number, one.html);
  }
  await readWork(key, data).catch(() => {});
  const height = view.scroller.scrollHeight;
  drawTalk(view, data, false);
  view.scroller.scrollTop += view.scroller.scrollHeight - height; // what is read stays where it is
}

function build(key, data) {
  const view = {
    title: h("h1.cut", key), status: h("span.status"), time: elapsed(null), last: agoOf(null),
    activity: h("span.cut.dim"), sub: h("p.session-sub.faint.cut"),
    talk: h("ol.talk"), partials: h("ol.talk", { "aria-live": "off" }),
    approvals: h("div.approvals.in-place", { hidden: true }), queue: h("ol.queue", { "aria-label": "Queue" }),
    errors: h("details.errors", { hidden: true }), screen: h("pre.screen", { hidden: true }), loading: skeleton(5),
    stuck: true,
  };
  view.interrupt = actButton("Interrupt", async () => {
    const { interrupted, resume } = await post(`/sessions/${part(key)}/interrupt`);
    toast(resume ? `Interrupted. Go on with: ${resume}`
      : interrupted ? "Interrupted; the queue goes on."
      : "Nothing was running.");
  }, { kind: "acts", iconName: "stop", title: "Stop the running turn; what is queued goes on" });
  view.soon = actButton("Stop after this step", async () => {
    const { interrupted } = await post(`/sessions/${part(key)}/interrupt`, { mode: "stop" });
    toast(interrupted ? "It closes with one answer, without more tools." : "Nothing was running.");
  }, { kind: "acts", iconName: "pause", title: "No more tools, and one closing answer" });
  view.close = actButton("Close", async () => {
    if (await confirmed("Close this session? What is running or queued in it is cancelled.", "Close the session"))
      data.session = await post(`/sessions/${part(key)}/close`);
  }, { kind: "danger acts" });
  Object.assign(view, composer((text, wish, mode) => view.send(text, wish, mode)));
  if (single) view.button.before(...attachButton(key, view.input));
  view.earlier = actButton("Earlier messages", () => readEarlier(view, key, data), { kind: "quiet" });
  view.earlier.hidden = true;
  view.scroller = h("div.talk-scroll", { tabindex: "0", role: "log", "aria-label": "Conversation" }, view.loading,
    view.earlier, view.talk, view.partials, view.screen, view.approvals);
  view.scroller.addEventListener("scroll", () => {
    view.stuck = view.scroller.scrollHeight - view.scroller.scrollTop - view.scroller.clientHeight < 60;
  }, { passive: true });
  view.look = actButton("Terminal", () => view.showTerminal(!view.terminal),
    { iconName: "terminal", title: "See its terminal and type into it" });
  view.look.hidden = true;
  view.body = h("div.session-body",
    h("section.panel.talk-panel", view.scroller,
      h("div.talk-foot", view.errors, view.queue, view.modes.node, view.form)));
  view.parts = [
    h("div.page-head",
      single ? null : h("nav.crumbs", { "aria-label": "Where" }, h("a", { href: "/sessions" }, "Sessions")),
      view.title, h("span.spacer"),
      h("span.task-buttons", view.look, view.soon, view.interrupt, single ? null : view.close)),
    view.sub,
    h("p.task-line", view.status, h("span", view.time), h("span.dim", "last activity ", view.last), view.activity),
    view.body];
  return view;
}

function stick(view) {
  if (view.stuck) view.scroller.scrollTop = view.scroller.scrollHeight;
}

const isClosed = ({ status }) => status === "closed" || status === "lost";

/** For what a running turn offers; kept while nothing runs, so that nothing moves when it does. */
function makeRoom(view, room, steerable = false) {
  view.soon.hidden = !room;
  view.soon.classList.toggle("idle", !steerable);
  view.modes.offer(steerable, Boolean(room));
}

function drawAll(view, data, page) {
  const { session, running } = data;
  const closed = isClosed(session);
  page.setTitle(session.title || session.key);
  say(view.title, session.title || session.key);
  const used = [usageText(data.used), untoldText(data.used)].filter(Boolean).join(", ");
  say(view.sub,
    [
      session.title ? session.key : null, `with ${session.agent}`, session.workdir,
      used && usageText(data.used) ? `used ${used}` : null,
    ].filter(Boolean).join("  ·  ")).title = view.sub.textContent;
  view.status.dataset.status = session.status;
  say(view.status, session.status);
  attribute(view.time, "from", running?.started_at ?? null);
  const activity = running ? desk.activity.get(running.id) : null;
  attribute(view.last, "at", data.last ?? activity?.at ?? session.updated_at);
  say(view.activity, activity?.text ?? "");
  const steerable = Boolean(running && data.steerable && !closed);
  view.interrupt.disabled = !running;
  say(view.interrupt.lastChild, steerable ? "Abort now" : "Interrupt");
  makeRoom(view, data.steerable && !closed, steerable);
  view.soon.disabled = [...data.steers.values()].some((one) => one.mode === "stop");
  view.close.disabled = closed;
  view.loading.remove();
  view.approvals.hidden = false; // below what was said, so not before it
  drawTalk(view, data, closed);
  keyed(view.queue, [...data.queue.values()].sort((a, b) => (a.id < b.id ? -1 : 1)), (task) => task.id, queued);
  view.screen.hidden = !data.screen || !running || Boolean(view.terminal);
  if (data.screen) say(view.screen, data.screen);
  drawErrors(view.errors, data.errors);
  view.input.placeholder = closed ? "This session is closed"
    : running ? (steerable ? "Write on; choose when it is heard" : "Write on; it waits in the queue")
    : "Write a message";
  view.input.disabled = closed;
  view.button.disabled = closed;
  say(view.button.lastChild, running && view.modes.mode() === "after_turn" ? "Queue" : "Send");
  stick(view);
}

function queued(task) {
  return h("li.queued", h("span.tag", "queued"), h("span.cut", firstLine(task.prompt)), h("span.spacer"),
    taskLink(task.id, "task"),
    actButton("", () => post(`/tasks/${task.id}/cancel`),
      { kind: "icon-button acts", iconName: "cross", title: "Take it out of the queue" }));
}

function drawErrors(node, errors) {
  node.hidden = !errors.length;
  if (!errors.length) return;
  if (!node.firstChild) node.append(h("summary"), h("ul"));
  say(node.firstChild,
    `${errors.length} ` +
      `${errors.length > 1 ? "warnings or errors" : errors[0].level === "warning" ? "warning" : "error"} of the agent`);
  keyed(node.lastChild, errors.map((one, at) => ({ ...one, at })), (one) => `${one.time}${one.at}`,
    (one) => h("li", { class: one.level === "warning" ? "dim" : "bad-text" }, `${timeOfDay(one.time)} ${one.message}`));
}

