// What needs a person, besides questions: alerts of the watchdog, and automations and goals that paused unexpectedly.
// Loaded once, then updated from the event stream.

import { encodeSegment, get, Problem, trackRequests } from "./api.js";
import { stream } from "./stream.js";
import { now } from "./time.js";

const ALERT_DURATION = 35 * 60000; // an alert whose reason is still true is repeated every half hour
const EXPECTED_REASONS = new Set(["paused by a person", "it has had all its runs", "its time has passed"]);
const CHANGE_KINDS =
  /^(automation_(changed|fired|missed|paused)|goal_(changed|step|delayed|paused|completed|timed_out))$/;

/** Return whether an automation or goal is paused for an unexpected reason. */
export const needsAttention = (item) => item.status === "paused" && Boolean(item.paused_why) &&
  !EXPECTED_REASONS.has(item.paused_why);

/** Return the id of the automation or goal that an event is about, or null. */
export const getSubject = (event) => event.payload?.automation_id ?? event.payload?.goal_id ?? null;

/** Return the address of the page about a subject. */
export const getAddress = (id) =>
  `/${id.startsWith("am_") ? "automations" : id.startsWith("g_") ? "goals" : "tasks"}/${id}`;

class Attention {
  paused = new Map();
  #alerts = new Map();
  #listeners = new Set();
  #started = false;
  #readTimer = null;
  #startRequest = trackRequests();
  #endedSeqs = new Map(); // seq of the newest alert that has ended, for each subject

  /** Add a listener for changes. Returns a function that removes it. */
  on(listener) {
    this.#listeners.add(listener);
    if (!this.#started) {
      this.#started = true;
      stream.on({
        event: (event) => this.#handleEvent(event),
        reset: () => { this.#alerts.clear(); this.#endedSeqs.clear(); this.read(); },
      });
      this.read();
    }
    return () => this.#listeners.delete(listener);
  }

  /** Return the current alert about a subject, or undefined. */
  alert(id) {
    const findAlert = this.#alerts.get(id);
    return findAlert && now() - Date.parse(findAlert.time) < ALERT_DURATION ? findAlert : undefined;
  }

  /** Return the current alert about an automation, a goal or its running task, or undefined. */
  findAlertAbout(item) {
    const isRelated = (alert) => alert.session === item.session_key || alert.session.startsWith(`${item.session_key}|`);
    return this.alert(item.id) ?? (item.running ? this.alerts.find(isRelated) : undefined);
  }

  get alerts() {
    return [...this.#alerts.keys()].map((id) => this.alert(id)).filter(Boolean);
  }

  /** Remove an alert that a person has read. */
  dismiss(id) {
    if (this.#endAlert(id)) this.#notify();
  }

  #endAlert(id) {
    const { seq } = this.#alerts.get(id) ?? {};
    if (seq) this.#endedSeqs.set(id, seq);
    return this.#alerts.delete(id);
  }

  async read() {
    const { accept } = this.#startRequest();
    const replies = await Promise.all([
      get(`/events?kind=watchdog_alert&before=${Number.MAX_SAFE_INTEGER}&limit=50`),
      get("/automations?status=paused&limit=200"),
      get("/goals?status=paused&limit=200"),
    ]).catch(() => null);
    if (!replies || !accept()) return;
    const [alertEvents, automations, goals] = replies;
    const addName = (item) => ({ ...item, name: item.title || item.objective || item.prompt });
    this.paused = new Map([...automations.automations, ...goals.goals]
      .filter(needsAttention)
      .map((item) => [item.id, addName(item)]));
    for (const event of alertEvents.events) this.#addAlert(event);
    await Promise.all(this.alerts.map(async (alert) => {
      if (!(await isStillActive(alert)) && this.#alerts.get(alert.subject) === alert) this.#endAlert(alert.subject);
    }));
    this.#notify();
  }

  #addAlert(event) {
    const { subject } = event.payload;
    if (event.seq <= Math.max(this.#endedSeqs.get(subject) ?? 0, this.#alerts.get(subject)?.seq ?? 0)) return;
    this.#alerts.set(event.payload.subject,
      { ...event.payload, time: event.time, seq: event.seq, session: event.session_key ?? "" });
  }

  #handleEvent(event) {
    if (event.kind === "watchdog_alert") {
      this.#addAlert(event);
      return this.#notify();
    }
    const alert = this.#alerts.get(event.task_id);
    if (alert && (event.kind === "task_finished" || (alert.alert !== "stuck" && !event.kind.startsWith("delivery_"))))
      this.dismiss(event.task_id);
    if (!CHANGE_KINDS.test(event.kind)) return undefined;
    const id = getSubject(event);
    this.dismiss(id);
    if (event.kind.endsWith("_paused") || this.paused.has(id)) this.#scheduleRead();
    return undefined;
  }

  #scheduleRead() {
    this.#readTimer ??= setTimeout(() => { this.#readTimer = null; this.read(); }, 100);
  }

  #notify() {
    for (const listener of [...this.#listeners]) listener();
  }
}

/** Return whether the reason of a recent alert is still true. */
async function isStillActive({ subject, time }) {
  if (!/^(am|g|t)_/.test(subject)) return true;
  const record = await get(getAddress(encodeSegment(subject))).catch((problem) => problem);
  if (record instanceof Problem) return record.status !== 404;
  if (subject.startsWith("t_")) return !["done", "failed", "cancelled"].includes(record.status);
  return record.status === "active" && record.updated_at <= time;
}

export const attention = new Attention();
