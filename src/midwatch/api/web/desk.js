// The state of the console: who is signed in, running tasks, open questions, the last activity of each task.
//
// The event stream updates it. Listeners are called for the part that changed: "tasks", "approvals", "counts" or
// "activity".

import { get, trackRequests } from "./api.js";
import { applyEvent, createTask, formatEvent, TASK_KINDS } from "./model.js";
import { stream } from "./stream.js";

class Desk {
  me = null;
  counts = null;
  running = new Map();
  approvals = new Map();
  activity = new Map();
  resolutions = new Map(); // how questions ended
  answeredHere = new Set(); // those that were answered here
  #listeners = new Map();
  #startRequest = trackRequests();

  on(part, listener) {
    if (!this.#listeners.has(part)) this.#listeners.set(part, new Set());
    this.#listeners.get(part).add(listener);
    return () => this.#listeners.get(part).delete(listener);
  }

  #notify(part, value) {
    for (const listener of [...(this.#listeners.get(part) ?? [])]) listener(value);
  }

  get may() {
    const role = this.me?.role;
    return { act: role !== "viewer", own: role === "owner" };
  }

  start() {
    stream.on({
      state: (data) => this.#handleState(data),
      event: (event) => this.#handleEvent(event),
      live: (event) => this.#handleLive(event),
      reset: () => this.readApprovals(),
    });
    this.readApprovals();
  }

  async readApprovals() {
    const { accept } = this.#startRequest();
    const known = [...this.approvals.keys()]; // the reply may not include newer questions
    const { approvals } = await get("/approvals?limit=500").catch(() => ({}));
    if (!approvals || !accept()) return;
    for (const approval of approvals.filter(({ id }) => !this.resolutions.has(id)))
      this.approvals.set(approval.id, { ...approval, choices: normaliseChoices(approval.choices) });
    const open = new Set(approvals.map((approval) => approval.id));
    for (const id of known) if (!open.has(id)) this.approvals.delete(id);
    this.#notify("approvals");
  }

  /** Remove an answered question. An answer that was given here does not wait for its event. */
  markAnswered(id, how = {}) {
    this.resolutions.set(id, { ...how, ...this.resolutions.get(id) });
    if (this.approvals.delete(id)) this.#notify("approvals");
  }

  #handleState(data) {
    if (data.summary) this.counts = data.summary;
    // the state of a single session has one running task or none
    if (data.running !== undefined)
      this.running = new Map([data.running].flat().filter(Boolean).map((task) => [task.id, task]));
    for (const id of this.activity.keys()) if (!this.running.has(id)) this.activity.delete(id);
    this.#notify("counts");
    this.#notify("tasks");
  }

  #handleLive(event) {
    if (event.task_id && this.running.has(event.task_id)) this.#recordActivity(event);
  }

  #recordActivity(event) {
    const before = this.activity.get(event.task_id);
    const text = formatEvent(event);
    this.activity.set(event.task_id, { at: event.time, text });
    if (before?.text !== text || Date.parse(event.time) - Date.parse(before.at) > 500)
      this.#notify("activity", event.task_id);
  }

  #handleEvent(event) {
    if (event.kind === "approval_requested") this.#addApproval(event);
    if (event.kind === "approval_resolved") this.#handleResolution(event);
    if (TASK_KINDS.has(event.kind)) this.#handleTask(event);
    if (event.task_id && this.running.has(event.task_id)) this.#recordActivity(event);
  }

  #handleResolution({ payload, actor }) {
    this.markAnswered(payload.approval_id,
      { status: payload.status, answer: payload.answer, by: payload.answered_by ?? actor });
  }

  #addApproval(event) {
    const { approval_id: id, choices, question_kind: kind, ...details } = event.payload;
    if (this.resolutions.has(id) || details.rule) return; // a rule has answered it
    this.approvals.set(id, {
      ...details, id, kind, choices: normaliseChoices(choices), status: "pending", task_id: event.task_id,
      agent: event.agent_id ?? "",
      session_key: event.session_key, created_at: event.time, fromEvent: true,
    });
    this.#notify("approvals");
  }

  #handleTask(event) {
    const id = event.task_id;
    const runningTask = this.running.get(id);
    if (event.kind === "task_submitted") this.#changeCounts({ total: 1, pending: 1 });
    else if (event.kind === "task_started") {
      if (!runningTask) this.#changeCounts({ pending: -1, running: 1 });
      this.running.set(id, applyEvent(runningTask ?? this.#findTask(event), event));
    } else if (event.kind === "task_finished") {
      this.#changeCounts({ [runningTask ? "running" : "pending"]: -1, [event.payload.status]: 1 });
      this.running.delete(id);
      this.activity.delete(id);
    } else if (runningTask) {
      const next = applyEvent(runningTask, event);
      if (next.status === "running") this.running.set(id, next);
      else {
        this.running.delete(id);
        this.#changeCounts({ running: -1, pending: 1 });
      }
    }
    if (event.kind === "task_submitted") this.#remember(event);
    if (event.kind === "turn_start" && runningTask && !runningTask.prompt)
      this.running.set(id, { ...runningTask, prompt: event.payload.user_message });
    this.#notify("tasks", event);
  }

  // Only the first event of a task has its prompt; keep recent ones until the tasks start.
  #submitted = new Map();

  #remember(event) {
    this.#submitted.set(event.task_id, createTask(event));
    if (this.#submitted.size > 500) this.#submitted.delete(this.#submitted.keys().next().value);
  }

  #findTask(event) {
    return this.#submitted.get(event.task_id) ?? createTask(event);
  }

  #changeCounts(changes) {
    if (!this.counts) return;
    this.counts = { ...this.counts };
    for (const [name, change] of Object.entries(changes)) {
      this.counts[name] = Math.max(0, (this.counts[name] ?? 0) + change);
    }
    this.#notify("counts");
  }
}

/** Return choices as { name, kind }; of plain names the first one allows. */
const normaliseChoices = (choices) =>
  choices.map((choice, at) => (typeof choice === "string" ? { name: choice, kind: at ? "reject_once" : "allow_once" }
    : choice));

export const desk = new Desk();
