// What the console knows at any moment: who I am, what runs, what waits for an answer, when each task last moved.
//
// It is fed by the one stream. Listeners are told which part changed: "tasks", "approvals", "counts", "activity".

import { asking, get } from "./api.js";
import { after, line, taskFrom, TASK_KINDS } from "./model.js";
import { stream } from "./stream.js";

class Desk {
  me = null;
  counts = null;
  running = new Map();
  approvals = new Map();
  activity = new Map();
  resolutions = new Map(); // how questions ended
  mine = new Set(); // those that were answered here
  #listeners = new Map();
  #ask = asking();

  on(part, listener) {
    if (!this.#listeners.has(part)) this.#listeners.set(part, new Set());
    this.#listeners.get(part).add(listener);
    return () => this.#listeners.get(part).delete(listener);
  }

  #tell(part, value) {
    for (const listener of [...(this.#listeners.get(part) ?? [])]) listener(value);
  }

  get may() {
    const role = this.me?.role;
    return { act: role !== "viewer", own: role === "owner" };
  }

  start() {
    stream.on({
      state: (data) => this.#state(data),
      event: (event) => this.#event(event),
      live: (event) => this.#live(event),
      reset: () => this.readApprovals(),
    });
    this.readApprovals();
  }

  async readApprovals() {
    const { isNext } = this.#ask();
    const known = [...this.approvals.keys()]; // what is asked meanwhile may not be in the answer
    const { approvals } = await get("/approvals?limit=500").catch(() => ({}));
    if (!approvals || !isNext()) return;
    for (const one of approvals)
      if (!this.resolutions.has(one.id)) this.approvals.set(one.id, { ...one, choices: named(one.choices) });
    const open = new Set(approvals.map((one) => one.id));
    for (const id of known) if (!open.has(id)) this.approvals.delete(id);
    this.#tell("approvals");
  }

  /** A question is answered; the event of an answer that was given here is not waited for. */
  answered(id, how = {}) {
    this.resolutions.set(id, { ...how, ...this.resolutions.get(id) });
    if (this.approvals.delete(id)) this.#tell("approvals");
  }

  #state(data) {
    if (data.summary) this.counts = data.summary;
    // of one session it is one or none
    if (data.running !== undefined)
      this.running = new Map([data.running].flat().filter(Boolean).map((task) => [task.id, task]));
    for (const id of this.activity.keys()) if (!this.running.has(id)) this.activity.delete(id);
    this.#tell("counts");
    this.#tell("tasks");
  }

  #live(event) {
    if (event.task_id && this.running.has(event.task_id)) this.#moved(event);
  }

  #moved(event) {
    const before = this.activity.get(event.task_id);
    const text = line(event);
    this.activity.set(event.task_id, { at: event.time, text });
    if (before?.text !== text || Date.parse(event.time) - Date.parse(before.at) > 500)
      this.#tell("activity", event.task_id);
  }

  #event(event) {
    if (event.kind === "approval_requested") this.#asked(event);
    if (event.kind === "approval_resolved") this.#resolved(event);
    if (TASK_KINDS.has(event.kind)) this.#task(event);
    if (event.task_id && this.running.has(event.task_id)) this.#moved(event);
  }

  #resolved({ payload, actor }) {
    this.answered(payload.approval_id,
      { status: payload.status, answer: payload.answer, by: payload.answered_by ?? actor });
  }

  #asked(event) {
    const { approval_id: id, choices, question_kind: kind, ...told } = event.payload;
    if (this.resolutions.has(id) || told.rule) return; // a standing rule has answered it
    this.approvals.set(id, {
      ...told, id, kind, choices: named(choices), status: "pending", task_id: event.task_id,
      agent: event.agent_id ?? "",
      session_key: event.session_key, created_at: event.time, fromEvent: true,
    });
    this.#tell("approvals");
  }

  #task(event) {
    const id = event.task_id;
    const ran = this.running.get(id);
    if (event.kind === "task_submitted") this.#count({ total: 1, pending: 1 });
    else if (event.kind === "task_started") {
      if (!ran) this.#count({ pending: -1, running: 1 });
      this.running.set(id, after(ran ?? this.#known(event), event));
    } else if (event.kind === "task_finished") {
      this.#count({ [ran ? "running" : "pending"]: -1, [event.payload.status]: 1 });
      this.running.delete(id);
      this.activity.delete(id);
    } else if (ran) {
      const next = after(ran, event);
      if (next.status === "running") this.running.set(id, next);
      else {
        this.running.delete(id);
        this.#count({ running: -1, pending: 1 });
      }
    }
    if (event.kind === "task_submitted") this.#remember(event);
    if (event.kind === "turn_start" && ran && !ran.prompt)
      this.running.set(id, { ...ran, prompt: event.payload.user_message });
    this.#tell("tasks", event);
  }

  // The prompt of a task stands in its first event only; keep the recent ones until they start.
  #submitted = new Map();

  #remember(event) {
    this.#submitted.set(event.task_id, taskFrom(event));
    if (this.#submitted.size > 500) this.#submitted.delete(this.#submitted.keys().next().value);
  }

  #known(event) {
    return this.#submitted.get(event.task_id) ?? taskFrom(event);
  }

  #count(changes) {
    if (!this.counts) return;
    this.counts = { ...this.counts };
    for (const [name, change] of Object.entries(changes)) {
      this.counts[name] = Math.max(0, (this.counts[name] ?? 0) + change);
    }
    this.#tell("counts");
  }
}

/** Choices as { name, kind }; of plain names the first is the yes. */
const named = (choices) =>
  choices.map((one, at) => (typeof one === "string" ? { name: one, kind: at ? "reject_once" : "allow_once" } : one));

export const desk = new Desk();
