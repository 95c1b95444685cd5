// What needs a person beside questions: alerts of the watchdog, and automations and goals that rest for a reason of
// their own. Read once, then kept by the stream.

import { asking, get, part, Problem } from "./api.js";
import { stream } from "./stream.js";
import { now } from "./time.js";

const ALERT_LASTS = 35 * 60000; // what is still wrong is told again every half hour
const AS_WANTED = new Set(["paused by a person", "it has had all its runs", "its time has passed"]);
const MOVES = /^(automation_(changed|fired|missed|paused)|goal_(changed|step|delayed|paused|completed|timed_out))$/;

/** Whether something paused rests for a reason that nobody wished. */
export const needsCare = (one) => one.status === "paused" && Boolean(one.paused_why) && !AS_WANTED.has(one.paused_why);

/** Which automation, goal or task an event is about, by its own words. */
export const subjectOf = (event) => event.payload?.automation_id ?? event.payload?.goal_id ?? null;

/** Where a subject is shown. */
export const addressOf = (id) =>
  `/${id.startsWith("am_") ? "automations" : id.startsWith("g_") ? "goals" : "tasks"}/${id}`;

class Attention {
  paused = new Map();
  #alerts = new Map();
  #listeners = new Set();
  #begun = false;
  #soonAsked = null;
  #ask = asking();
  #seen = new Map(); // the newest alert that is over, for each subject

  /** Be told when something changed. Returns how to stop. */
  on(listener) {
    this.#listeners.add(listener);
    if (!this.#begun) {
      this.#begun = true;
      stream.on({
        event: (event) => this.#event(event),
        reset: () => { this.#alerts.clear(); this.#seen.clear(); this.read(); },
      });
      this.read();
    }
    return () => this.#listeners.delete(listener);
  }

  /** What is wrong with a subject, or undefined. */
  alert(id) {
    const found = this.#alerts.get(id);
    return found && now() - Date.parse(found.time) < ALERT_LASTS ? found : undefined;
  }

  /** What is wrong with an automation or goal, or with what it does now, or undefined. */
  about(one) {
    const its = (alert) => alert.session === one.session_key || alert.session.startsWith(`${one.session_key}|`);
    return this.alert(one.id) ?? (one.running ? this.alerts.find(its) : undefined);
  }

  get alerts() {
    return [...this.#alerts.keys()].map((id) => this.alert(id)).filter(Boolean);
  }

  /** Somebody has seen it. */
  dismiss(id) {
    if (this.#over(id)) this.#tell();
  }

  #over(id) {
    const { seq } = this.#alerts.get(id) ?? {};
    if (seq) this.#seen.set(id, seq);
    return this.#alerts.delete(id);
  }

  async read() {
    const { isNext } = this.#ask();
    const found = await Promise.all([
      get(`/events?kind=watchdog_alert&before=${Number.MAX_SAFE_INTEGER}&limit=50`),
      get("/automations?status=paused&limit=200"),
      get("/goals?status=paused&limit=200"),
    ]).catch(() => null);
    if (!found || !isNext()) return;
    const [told, automations, goals] = found;
    const name = (one) => ({ ...one, name: one.title || one.objective || one.prompt });
    this.paused = new Map([...automations.automations, ...goals.goals]
      .filter(needsCare)
      .map((one) => [one.id, name(one)]));
    for (const event of told.events) this.#told(event);
    await Promise.all(this.alerts.map(async (one) => {
      if (!(await stillWrong(one)) && this.#alerts.get(one.subject) === one) this.#over(one.subject);
    }));
    this.#tell();
  }

  #told(event) {
    const { subject } = event.payload;
    if (event.seq <= Math.max(this.#seen.get(subject) ?? 0, this.#alerts.get(subject)?.seq ?? 0)) return;
    this.#alerts.set(event.payload.subject,
      { ...event.payload, time: event.time, seq: event.seq, session: event.session_key ?? "" });
  }

  #event(event) {
    if (event.kind === "watchdog_alert") {
      this.#told(event);
      return this.#tell();
    }
    const known = this.#alerts.get(event.task_id);
    if (known && (event.kind === "task_finished" || (known.alert !== "stuck" && !event.kind.startsWith("delivery_"))))
      this.dismiss(event.task_id);
    if (!MOVES.test(event.kind)) return undefined;
    const id = subjectOf(event);
    this.dismiss(id);
    if (event.kind.endsWith("_paused") || this.paused.has(id)) this.#soon();
    return undefined;
  }

  #soon() {
    this.#soonAsked ??= setTimeout(() => { this.#soonAsked = null; this.read(); }, 100);
  }

  #tell() {
    for (const listener of [...this.#listeners]) listener();
  }
}

/** Whether what an alert told lately is still so. */
async function stillWrong({ subject, time }) {
  if (!/^(am|g|t)_/.test(subject)) return true;
  const found = await get(addressOf(part(subject))).catch((problem) => problem);
  if (found instanceof Problem) return found.status !== 404;
  if (subject.startsWith("t_")) return !["done", "failed", "cancelled"].includes(found.status);
  return found.status === "active" && found.updated_at <= time;
}

export const attention = new Attention();
