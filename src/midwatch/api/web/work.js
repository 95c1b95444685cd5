// What agents do between a prompt and its answer, as steps: thoughts, plans, tools, answered questions. Pure: it takes
// events and keeps the steps in order; `steps.js` draws them.

/** The stored kinds that make steps, for asking the log. */
export const WORK_KINDS = [
  "thought_update", "plan_update", "tool_exec_start", "tool_exec_end", "approval_requested", "approval_resolved",
  "turn_end", "llm_response", "error", "task_finished",
];
const MAKERS = new Set([...WORK_KINDS, "thought_delta"]);
const turnOf = (event) => `${event.task_id} ${event.attempt ?? ""}`;

export class Work {
  steps = [];
  #known = new Map();
  #questions = new Map();
  #used = new Map();
  #seen = new Set();
  #latest = ""; // when the newest stored event happened

  /** Take in an event, stored or live. Returns whether a step changed. */
  take(event) {
    if (event.seq && event.time > this.#latest) this.#latest = event.time;
    if (!MAKERS.has(event.kind)) return false;
    if (event.seq) {
      if (this.#seen.has(event.seq)) return false;
      this.#seen.add(event.seq);
    }
    return Boolean(this[event.kind]?.(event, event.payload ?? {}));
  }

  /** Begin again, with these events. `said` is when the last message was. */
  reset(events, said = "") {
    // no stored event has them yet
    const live = [...this.#known].filter(([, one]) => one.kind === "thought" && one.open);
    Object.assign(this, { steps: [] });
    this.#latest = said;
    for (const one of [this.#known, this.#questions, this.#used, this.#seen]) one.clear();
    for (const event of events) this.take(event);
    for (const [name, one] of live) {
      if (this.#known.has(name) || this.steps.some((step) => step.kind === "turn" && step.task === one.task)) continue;
      this.#known.set(name, one);
      this.steps.push(Object.assign(one, { time: this.#latest || one.time }));
    }
  }

  /** What a task still had in hand is over: it stopped, or begins anew. */
  close(task) {
    for (const step of this.steps)
      if (step.task === task && step.open) Object.assign(step, { open: false, version: step.version + 1 });
  }

  // A live event tells no time, and this machine's clock is another one: it came after what is stored so far.
  #step(name, event, fields) {
    const found = this.#known.get(name);
    if (found) {
      Object.assign(found, fields, { version: found.version + 1 });
      return found;
    }
    const made = {
      key: `${name}#${event.seq ?? event.time}`, task: event.task_id,
      time: event.seq ? event.time : this.#latest || event.time, version: 0, open: false, ...fields,
    };
    this.#known.set(name, made);
    this.steps.push(made);
    return made;
  }

  thought_delta(event, { thought_id: id, offset, text }) {
    const name = `thought ${event.task_id} ${id}`;
    const known = this.#known.get(name);
    if (known && !known.open) return null; // it was told whole already
    const letters = Array.from(text ?? "");
    const end = known ? known.from + known.length : offset;
    const fresh = letters.slice(Math.max(0, end - offset));
    if (known && !fresh.length) return null;
    const lost = offset > end || (!known && offset > 0);
    const grown = `${known?.text ?? ""}${lost ? "… " : ""}${fresh.join("")}`;
    const length = Math.max(end, offset) + fresh.length - (known?.from ?? offset);
    return this.#step(name, event, { kind: "thought", text: grown, from: known?.from ?? offset, length, open: true });
  }

  thought_update(event, { thought_id: id, text }) {
    return this.#step(`thought ${event.task_id} ${id}`, event, { kind: "thought", text: text ?? "", open: false });
  }

  plan_update(event, { entries }) {
    return this.#step(`plan ${event.task_id}`, event, { kind: "plan", entries: Array.isArray(entries) ? entries : [] });
  }

  tool_exec_start(event, p) {
    const name = this.#tool(event, p);
    if (this.#known.get(name)?.open === false) this.#known.delete(name); // the same name again is another call
    return this.#step(name, event, {
      kind: "tool", tool: p.tool, title: p.title ?? null, toolKind: p.tool_kind ?? null, arguments: p.arguments ?? null,
      locations: p.locations ?? [], started: event.time, open: true,
    });
  }

  tool_exec_end(event, p) {
    const name = this.#tool(event, p);
    if (this.#known.get(name)?.open === false) this.#known.delete(name);
    return this.#step(name, event, {
      kind: "tool", tool: p.tool, open: false, ended: event.time, duration: p.duration ?? null,
      bad: Boolean(p.is_error),
      result: p.result ?? null, cut: p.cut ?? null, diffs: p.diffs ?? [], endSeq: event.seq,
    });
  }

  #tool(event, p) {
    return `tool ${event.task_id} ${event.attempt ?? ""} ${p.tool_call_id ?? p.tool}`;
  }

  // A question is a card of its own while it waits; what was answered becomes a step.
  approval_requested(event, p) {
    this.#questions.set(p.approval_id, p);
    return null;
  }

  approval_resolved(event, p) {
    const asked = this.#questions.get(p.approval_id);
    const by = p.answered_by ?? event.actor ?? null;
    return this.#step(`question ${p.approval_id}`, event, {
      kind: "question", question: asked?.question ?? "", command: asked?.command ?? null, status: p.status,
      answer: p.answer ?? null, why: p.why ?? null, by, rule: p.rule ?? null,
    });
  }

  error(event, p) {
    return this.#step(`error ${event.seq}`, event, { kind: "error", text: `${p.stage}: ${p.message}` });
  }

  llm_response(event, { usage, model }) {
    const sum = this.#used.get(turnOf(event)) ?? {};
    for (const name of ["input_tokens", "output_tokens", "cost_usd"])
      if (Number.isFinite(usage?.[name])) sum[name] = (sum[name] ?? 0) + usage[name];
    if (model) sum.model = model;
    this.#used.set(turnOf(event), sum);
    return null;
  }

  turn_end(event, p) {
    this.close(event.task_id);
    const own = this.steps.filter((one) => one.task === event.task_id);
    const tools = own.slice(own.findLastIndex((one) => one.kind === "turn") + 1)
      .filter((one) => one.kind === "tool").length;
    return this.#step(`turn ${turnOf(event)}`, event, {
      kind: "turn", status: p.status, duration: p.duration ?? null, tools,
      usage: this.#used.get(turnOf(event)) ?? null,
    });
  }

  task_finished(event, { usage }) {
    this.close(event.task_id);
    const turns = this.steps.filter((one) => one.task === event.task_id && one.kind === "turn");
    const last = turns.at(-1);
    if (!last || !usage || (turns.length > 1 && last.usage)) return last ?? null; // the task's is that of all its turns
    return Object.assign(last, { usage, version: last.version + 1 });
  }
}
