// What needs a person, besides questions: alerts of the watchdog, and automations and goals that paused unexpectedly.
// Loaded once, and again when an event may have changed it.

import { get, post, trackRequests } from "./api.js";
import { stream } from "./stream.js";

const READ_PAUSE = 100; // events in quick succession cause one request
const LOUD = new Set(["found", "raised", "escalated"]);
const EXPECTED_REASONS = new Set(["paused by a person", "it has had all its runs", "its time has passed"]);
const INTERRUPTED = / interrupted its run$| its step t_\w+$|^set \S+ declares it as not enabled$/;
const CHANGE_KINDS =
  /^(automation_(changed|fired|missed|paused)|goal_(changed|step|delayed|paused|completed|timed_out))$/;

/** Return whether an automation or goal is paused for an unexpected reason. */
export const needsAttention = (item) => item.status === "paused" && Boolean(item.paused_why) &&
  !EXPECTED_REASONS.has(item.paused_why) && !INTERRUPTED.test(item.paused_why);

/** Return the id of the automation or goal that an event is about, or null. */
export const getSubject = (event) => event.payload?.automation_id ?? event.payload?.goal_id ?? null;

/** Return the address of the page about an alert or about the record with this id. */
export const getAddress = (id, task = null) => {
  if (id.startsWith("am_")) return `/automations/${id}`;
  if (id.startsWith("g_")) return `/goals/${id}`;
  if (task ?? id.startsWith("t_")) return `/tasks/${task ?? id}`;
  return "/settings";
};

class Attention {
  paused = new Map();
  #alerts = [];
  #listeners = new Set();
  #started = false;
  #readTimer = null;
  #startRequest = trackRequests();

  /** Add a listener for changes. Returns a function that removes it. */
  on(listener) {
    this.#listeners.add(listener);
    if (!this.#started) {
      this.#started = true;
      stream.on({ event: (event) => this.#handleEvent(event), reset: () => { this.#alerts = []; this.read(); } });
      this.read();
    }
    return () => this.#listeners.delete(listener);
  }

  /** Return the alert about an automation, a goal or its running task that nobody has acknowledged, or undefined. */
  findAlertAbout(item) {
    const isRelated = ({ session_key: key }) => key === item.session_key || key?.startsWith(`${item.session_key}|`);
    return this.#alerts.find((alert) => alert.subject === item.id && alert.alert !== "paused") ??
      (item.running ? this.#alerts.find((alert) => alert.task_id && isRelated(alert)) : undefined);
  }

  get alerts() {
    return this.#alerts;
  }

  /** Acknowledge an alert for everybody. */
  async acknowledge(id) {
    await post(`/alerts/${encodeURIComponent(id)}/ack`);
    await this.read();
  }

  async read() {
    const { accept } = this.#startRequest();
    const replies = await Promise.all([
      get("/alerts"),
      get("/automations?status=paused&limit=200").catch(() => ({ automations: [] })), // a list that cannot be read
      get("/goals?status=paused&limit=200").catch(() => ({ goals: [] })), // hides no alert
    ]).catch(() => null);
    if (!replies || !accept()) return;
    const [reply, automations, goals] = replies;
    const addName = (item) => ({ ...item, name: item.title || item.objective || item.prompt });
    this.paused = new Map([...automations.automations, ...goals.goals]
      .filter(needsAttention)
      .map((item) => [item.id, addName(item)]));
    this.#alerts = reply.alerts.filter((alert) => LOUD.has(alert.status));
    for (const listener of [...this.#listeners]) listener();
  }

  #handleEvent(event) {
    const id = getSubject(event);
    const isAbout = (alert) => alert.subject === id || (alert.task_id && alert.task_id === event.task_id &&
      (alert.alert !== "stuck" || event.kind === "task_finished"));
    const mayEnd = this.#alerts.some(isAbout);
    if (mayEnd || event.kind.startsWith("watchdog_") || event.kind === "delivery_failed" ||
      event.kind === "delivery_retried" ||
      (CHANGE_KINDS.test(event.kind) && (event.kind.endsWith("_paused") || this.paused.has(id))))
      this.#readTimer ??= setTimeout(() => { this.#readTimer = null; this.read(); }, READ_PAUSE);
  }
}

export const attention = new Attention();
