// Elements that the pages of automations and goals share, and a function that reloads an automation or goal when an
// event changes it. Here an item is an automation or a goal.

import { attention } from "./attention.js";
import { h, setText } from "./dom.js";
import { createElapsed, createStatus, setAttribute, updateStatus } from "./parts.js";
import { stream } from "./stream.js";
import { formatDateTime } from "./time.js";

/** Return the display name of an automation or goal. */
export const getName = (item) => (item.title || item.objective || item.prompt || item.id).trim().split("\n", 1)[0];

const PAUSE_REASONS = {
  "paused by a person": "Paused manually", "it has had all its runs": "Paused: the maximum number of runs is reached",
  "its time has passed": "Paused: the scheduled time has passed",
  "its conversation is closed": "Paused: the session is closed",
};

/** Return why an automation or goal is paused. */
export const formatPause = ({ paused_why: reason }) =>
  PAUSE_REASONS[reason] ?? (reason ? `Paused: ${reason}` : "Paused");

const STATUS_NAMES = { waiting_for_session: "waiting", timeout: "timed out" };

/** Show the status of an automation or goal. */
export function updateItemStatus(node, item) {
  const isRunning = item.running && item.status !== "deleted" && item.status !== "complete";
  node.dataset.status = isRunning
    ? "running"
    : { complete: "done", timeout: "failed", deleted: "closed", active: "live" }[item.status] ?? item.status;
  setText(node, isRunning ? "running" : (STATUS_NAMES[item.status] ?? item.status));
  node.title = item.status === "paused" ? formatPause(item) : "";
  return node;
}

/** Call `read(id)` soon after an event about a subject, once for all events within `delay` milliseconds. Events that
 * arrive before the `first` reading is done are handled after it, because its reply may not include them. */
export function followEvents(page, { first, findSubject, read, reset, delay = 100 }) {
  const timers = new Map();
  const scheduleRead = (id) => {
    if (!timers.has(id))
      timers.set(id, setTimeout(() => { timers.delete(id); if (page.isCurrent()) read(id); }, delay));
  };
  page.onLeave(() => timers.forEach(clearTimeout));
  const handle = (event) => { const id = findSubject(event); if (id) scheduleRead(id); };
  let early = [];
  first.catch(() => {}).then(() => { if (page.isCurrent()) early.forEach(handle); early = null; });
  page.onLeave(stream.on({ event: (event) => { if (early) early.push(event); else handle(event); }, reset }));
}

/** Task events that change what is shown about a run. */
export const RUN_KINDS = new Set(["task_started", "task_waiting", "task_interrupted", "task_rescued", "task_finished"]);

/** Create a bar that compares what is used with a limit; without a limit it is only a number. */
export function createMeter(name) {
  return h("span.meter", { data: { meter: name } }, h("i", h("b")), h("span.num"));
}

export function updateMeter(node, used, limit, text, open) {
  const part = limit ? Math.min(1, Math.max(0, used / limit)) : 0;
  node.classList.toggle("unlimited", !limit);
  node.classList.toggle("nearly", open && part >= 0.8);
  node.classList.toggle("spent", open && part >= 1);
  node.firstChild.firstChild.style.setProperty("--part", part);
  setText(node.lastChild, text);
}

/** Create dots for the outcomes of the last runs, newest last, with a text for screen readers. */
export function createDots(count = 10) {
  return h("span.dots", { role: "img", "aria-label": "no runs yet" }, Array.from({ length: count }, () => h("i")));
}

export function updateDots(node, runs) {
  const recent = [...runs].reverse().slice(-node.children.length);
  const from = node.children.length - recent.length;
  [...node.children].forEach((dot, at) => {
    const run = recent[at - from];
    dot.dataset.status = run ? run.status : "none";
    const time = run?.completed_at ?? run?.started_at ?? run?.scheduled_for;
    dot.title = run ? `${formatOutcome(run)}, ${formatDateTime(time)}` : "";
  });
  node.setAttribute("aria-label", recent.length ? `last runs: ${recent.map(formatOutcome).join(", ")}` : "no runs yet");
}

export const formatOutcome = (run) => (run.outcome && run.outcome !== "ok" ? run.outcome : run.status);

/** Create the status and duration of a run; `updateRun` updates them. */
export function createRunParts(run) {
  return { status: createStatus(run), time: createElapsed(run.started_at, run.completed_at) };
}

export function updateRun({ status, time }, run) {
  updateStatus(status, run);
  setAttribute(time, "from", run.started_at);
  setAttribute(time, "to", run.completed_at);
}

/** Return the problem of an automation that cannot be read, or the alert about an automation or goal, as one line.
 * Without either, return an empty text. */
export function formatAlert(item) {
  if (item.problem) return item.problem;
  const alert = attention.findAlertAbout(item);
  return alert ? alert.text.replace(/^(\w+): [^\n]*\n/, "$1: ") : "";
}
