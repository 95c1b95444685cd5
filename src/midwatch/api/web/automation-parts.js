// What the pages of automations and goals share: how they are called and marked, their meters, dots and tables, and
// reading one again when the stream tells that it moved.

import { attention } from "./attention.js";
import { h, say } from "./dom.js";
import { attribute, elapsed, statusMark, updateStatus } from "./parts.js";
import { stream } from "./stream.js";
import { dateTime } from "./time.js";

/** What an automation or goal is called by. */
export const nameOf = (one) => (one.title || one.objective || one.prompt || one.id).trim().split("\n", 1)[0];

const WORDS = { waiting_for_session: "waiting", timeout: "timed out" };

/** The status of an automation or goal as a mark. */
export function updateStanding(node, one) {
  const runs = one.running && one.status !== "deleted" && one.status !== "complete";
  node.dataset.status = runs
    ? "running"
    : { complete: "done", timeout: "failed", deleted: "closed", active: "live" }[one.status] ?? one.status;
  say(node, runs ? "running" : (WORDS[one.status] ?? one.status));
  node.title = one.paused_why ?? "";
  return node;
}

/** Follow the stream for what `concerns` says it is about; `read` is asked at most once in a while for each. What
 * happens before the `first` reading is done is looked at after it, as it may not be in it. */
export function follow(page, { first, concerns, read, reset }) {
  const asked = new Map();
  const soon = (id) => {
    if (!asked.has(id)) asked.set(id, setTimeout(() => { asked.delete(id); if (page.isShown()) read(id); }, 100));
  };
  page.whenLeft(() => asked.forEach(clearTimeout));
  const take = (event) => { const id = concerns(event); if (id) soon(id); };
  let early = [];
  first.catch(() => {}).then(() => { if (page.isShown()) early.forEach(take); early = null; });
  page.whenLeft(stream.on({ event: (event) => { if (early) early.push(event); else take(event); }, reset }));
}

/** Events of tasks that change what is shown of a run. */
export const RUN_KINDS = new Set(["task_started", "task_waiting", "task_interrupted", "task_rescued", "task_finished"]);

/** Used and most of something as a bar; without a limit only as a number. */
export function meter(name) {
  return h("span.meter", { data: { meter: name } }, h("i", h("b")), h("span.num"));
}

export function updateMeter(node, used, most, text, open) {
  const part = most ? Math.min(1, Math.max(0, used / most)) : 0;
  node.classList.toggle("unlimited", !most);
  node.classList.toggle("nearly", open && part >= 0.8);
  node.firstChild.firstChild.style.setProperty("--part", part);
  say(node.lastChild, text);
}

/** Outcomes of the last runs, the newest last; the words are for those who do not see the dots. */
export function dots(most = 10) {
  return h("span.dots", { role: "img", "aria-label": "no runs yet" }, Array.from({ length: most }, () => h("i")));
}

export function updateDots(node, runs) {
  const shown = [...runs].reverse().slice(-node.children.length);
  const from = node.children.length - shown.length;
  [...node.children].forEach((dot, at) => {
    const run = shown[at - from];
    dot.dataset.status = run ? run.status : "none";
    dot.title = run ? `${outcomeText(run)}, ${dateTime(run.completed_at ?? run.started_at ?? run.scheduled_for)}` : "";
  });
  node.setAttribute("aria-label", shown.length ? `last runs: ${shown.map(outcomeText).join(", ")}` : "no runs yet");
}

export const outcomeText = (run) => (run.outcome && run.outcome !== "ok" ? run.outcome : run.status);

/** What a run or step cost in tokens, or null. */
export function tokensOf(run) {
  const { input_tokens: read, output_tokens: written } = run.usage ?? {};
  return read == null && written == null ? null : (read ?? 0) + (written ?? 0);
}

export const short = (number) => (number < 10000
  ? String(number)
  : new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(number));

/** Mark and duration of a run, kept in place. */
export function runParts(run) {
  return { status: statusMark(run), time: elapsed(run.started_at, run.completed_at) };
}

export function updateRun({ status, time }, run) {
  updateStatus(status, run);
  attribute(time, "from", run.started_at);
  attribute(time, "to", run.completed_at);
}

/** The alert about an automation or goal as a line, or nothing. */
export function alertLine(one) {
  const found = attention.about(one);
  return found ? found.text.replace(/^(\w+): [^\n]*\n/, "$1: ") : "";
}

/** Facts as a list of terms; what is not known is left out. */
export const known = (facts) => facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
