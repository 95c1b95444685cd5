// The work of an agent between a prompt and its answer, as steps: thoughts, plans, tools, answered questions. Pure: it
// turns events into ordered steps; `steps.js` shows them.

/** The kinds of stored events that become steps. */
export const WORK_KINDS = [
  "thought_update", "plan_update", "tool_exec_start", "tool_exec_end", "tool_exec_skipped", "approval_requested",
  "approval_resolved", "turn_end", "llm_response", "error", "task_finished", "context_injected",
];
const STEP_KINDS = new Set([...WORK_KINDS, "thought_delta"]);
const getTurnKey = (event) => `${event.task_id} ${event.attempt ?? ""}`;

export class Work {
  steps = [];
  #byName = new Map();
  #questions = new Map();
  #usage = new Map();
  #seen = new Set();
  #latest = ""; // when the newest stored event happened

  /** Handle a stored or live event. Returns whether a step changed. */
  handle(event) {
    if (event.seq && event.time > this.#latest) this.#latest = event.time;
    if (!STEP_KINDS.has(event.kind)) return false;
    if (event.seq) {
      if (this.#seen.has(event.seq)) return false;
      this.#seen.add(event.seq);
    }
    return Boolean(this[event.kind]?.(event, event.payload ?? {}));
  }

  /** Start again with these events. `lastMessageTime` is the time of the newest message. */
  reset(events, lastMessageTime = "") {
    // thoughts that are still being written are not stored yet, so keep them
    const live = [...this.#byName].filter(([, step]) => step.kind === "thought" && step.open);
    Object.assign(this, { steps: [] });
    this.#latest = lastMessageTime;
    for (const map of [this.#byName, this.#questions, this.#usage, this.#seen]) map.clear();
    for (const event of events) this.handle(event);
    for (const [name, step] of live) {
      if (this.#byName.has(name) || this.steps.some((turn) => turn.kind === "turn" &&
        turn.task === step.task)) continue;
      this.#byName.set(name, step);
      this.steps.push(Object.assign(step, { time: this.#latest || step.time }));
    }
  }

  /** Close the open steps of a task that ended or starts again. */
  close(task) {
    for (const step of this.steps)
      if (step.task === task && step.open) Object.assign(step, { open: false, version: step.version + 1 });
  }

  // A live event has no server time, so it is placed after the newest stored event.
  #upsertStep(name, event, fields) {
    const known = this.#byName.get(name);
    if (known) return Object.assign(known, fields, { version: known.version + 1 });
    const step = {
      key: `${name}#${event.seq ?? event.time}`, task: event.task_id,
      time: event.seq ? event.time : this.#latest || event.time, version: 0, open: false, ...fields,
    };
    this.#byName.set(name, step);
    this.steps.push(step);
    return step;
  }

  thought_delta(event, { thought_id: id, offset, text }) {
    const name = `thought ${event.task_id} ${id}`;
    const thought = this.#byName.get(name);
    if (thought && !thought.open) return null; // the stored thought has arrived already
    const letters = Array.from(text ?? "");
    const end = thought ? thought.from + thought.length : offset;
    const fresh = letters.slice(Math.max(0, end - offset));
    if (thought && !fresh.length) return null;
    const lost = offset > end || (!thought && offset > 0);
    const grown = `${thought?.text ?? ""}${lost ? "… " : ""}${fresh.join("")}`;
    const length = Math.max(end, offset) + fresh.length - (thought?.from ?? offset);
    return this.#upsertStep(name, event, { kind: "thought", text: grown, from: thought?.from ?? offset, length,
      open: true });
  }

  thought_update(event, { thought_id: id, text }) {
    return this.#upsertStep(`thought ${event.task_id} ${id}`, event,
      { kind: "thought", text: text ?? "", open: false });
  }

  plan_update(event, { entries }) {
    return this.#upsertStep(`plan ${event.task_id}`, event,
      { kind: "plan", entries: Array.isArray(entries) ? entries : [] });
  }

  tool_exec_start(event, p) {
    const name = this.#getToolKey(event, p);
    if (this.#byName.get(name)?.open === false) this.#byName.delete(name); // the same name again is a new call
    return this.#upsertStep(name, event, {
      kind: "tool", tool: p.tool, title: p.title ?? null, toolKind: p.tool_kind ?? null, arguments: p.arguments ?? null,
      locations: p.locations ?? [], started: event.time, open: true,
    });
  }

  tool_exec_end(event, p) {
    const name = this.#getToolKey(event, p);
    if (this.#byName.get(name)?.open === false) this.#byName.delete(name);
    return this.#upsertStep(name, event, {
      kind: "tool", tool: p.tool, open: false, ended: event.time, duration: p.duration ?? null,
      bad: Boolean(p.is_error),
      result: p.result ?? null, cut: p.cut ?? null, diffs: p.diffs ?? [], endSeq: event.seq,
    });
  }

  tool_exec_skipped(event, p) {
    return this.#upsertStep(`skipped ${event.seq}`, event, {
      kind: "tool", tool: p.tool, title: `${p.tool}: ${p.rule ?? p.reason}`, skipped: true, bad: true,
      ended: event.time, result: p.reason,
    });
  }

  #getToolKey(event, p) {
    return `tool ${event.task_id} ${event.attempt ?? ""} ${p.tool_call_id ?? p.tool}`;
  }

  // An open question has its own card; an answered question becomes a step.
  approval_requested(event, p) {
    this.#questions.set(p.approval_id, p);
    return null;
  }

  approval_resolved(event, p) {
    const question = this.#questions.get(p.approval_id);
    const by = p.answered_by ?? event.actor ?? null;
    return this.#upsertStep(`question ${p.approval_id}`, event, {
      kind: "question", question: question?.question ?? "", command: question?.command ?? null, status: p.status,
      answer: p.answer ?? null, why: p.why ?? null, by, rule: p.rule ?? null,
    });
  }

  context_injected(event, { task_ids: tasks, outcomes }) {
    return this.#upsertStep(`results ${event.seq}`, event,
      { kind: "results", tasks: tasks ?? [], outcomes: outcomes ?? [] });
  }

  error(event, p) {
    return this.#upsertStep(`error ${event.seq}`, event, { kind: "error", text: `${p.stage}: ${p.message}` });
  }

  llm_response(event, { usage, model }) {
    const sum = this.#usage.get(getTurnKey(event)) ?? {};
    for (const name of ["input_tokens", "output_tokens", "cost_usd"])
      if (Number.isFinite(usage?.[name])) sum[name] = (sum[name] ?? 0) + usage[name];
    if (model) sum.model = model;
    this.#usage.set(getTurnKey(event), sum);
    return null;
  }

  turn_end(event, p) {
    this.close(event.task_id);
    const taskSteps = this.steps.filter((step) => step.task === event.task_id);
    const tools = taskSteps.slice(taskSteps.findLastIndex((step) => step.kind === "turn") + 1)
      .filter((step) => step.kind === "tool" && !step.skipped).length;
    return this.#upsertStep(`turn ${getTurnKey(event)}`, event, {
      kind: "turn", status: p.status, duration: p.duration ?? null, tools,
      usage: this.#usage.get(getTurnKey(event)) ?? null,
    });
  }

  task_finished(event, { usage }) {
    this.close(event.task_id);
    const turns = this.steps.filter((step) => step.task === event.task_id && step.kind === "turn");
    const last = turns.at(-1);
    if (!last || !usage || (turns.length > 1 && last.usage)) return last ??
      null; // the usage of the task is the sum over its turns
    return Object.assign(last, { usage, version: last.version + 1 });
  }
}
