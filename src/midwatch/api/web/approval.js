// Questions of agents with their answer buttons, on every page that shows them.

import { get, post } from "./api.js";
import { desk } from "./desk.js";
import { getFirstLine, h, renderKeyed, setText, stackChildren } from "./dom.js";
import { icon } from "./icons.js";
import { ANSWER_TEXTS } from "./model.js";
import { createAgo, createCopyButton, createTaskLink, runAction, showToast } from "./parts.js";
import { createPatchDiffs } from "./diff.js";

const ORDER = ["allow_once", "reject_once", "allow_always", "reject_always"];
const REQUESTS = {
  read: "wants to read", edit: "wants to change", delete: "wants to remove", move: "wants to move",
  search: "wants to search", execute: "wants to run", fetch: "wants to fetch", think: "wants to think",
  switch_mode: "wants to switch the mode",
};
const ICONS = {
  read: "file", edit: "edit", delete: "bin", move: "move", search: "search", execute: "terminal", fetch: "globe",
  think: "thought",
};
const KINDS_WITH_DIFF = new Set(["edit", "delete", "move",
  "other"]); // an event leaves out the diff, which may be large
const ANSWERED_MS = 2500; // how long a card shows who answered it elsewhere

/** Sort choices: allow once, reject once, then those that create a rule. A plain question keeps its own order. */
function sortChoices({ choices, kind }) {
  if (!kind || kind === "choice") return choices;
  return [...choices].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
}

/** Return whether the question is the text of a terminal's screen that midwatch could not read. */
const isScreenText = (approval) => approval.risk === "high" && !approval.command && approval.question.includes("\n");

/** Create the card of an open question. */
function createApprovalCard(approval, { withTask = true, full = false } = {}) {
  const why = h("input.why",
    { placeholder: "Reason (optional)", maxLength: 2000, "aria-label": "Reason for the answer" });
  const choices = sortChoices(approval);
  const first = choices.find((choice) => choice.kind === "allow_once") ?? choices[0];
  const buttons = choices.map((choice) => {
    const button = h("button", {
      type: "button", class: choice === first ? "primary" : choice.kind.endsWith("always") ? "always" : "",
      title: choice.name,
    }, h("span.truncate", choice.name));
    // the card is busy too, so that only one answer is sent
    button.addEventListener("click", () =>
      runAction(card, () => runAction(button, () => sendAnswer(approval, choice, why.value))));
    return button;
  });
  const alwaysButtons = buttons.filter((button) => button.matches(".always"));
  const findButton = (kind) => buttons[choices.findIndex((choice) => choice.kind === kind)] ?? null;
  const deny = () => (findButton("reject_once") ?? findButton("reject_always"))?.click();
  why.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter") { pressed.preventDefault(); deny(); }
  });
  const taskLine = withTask ? createTaskLink(approval.task_id, "Task") : null;
  const sessionLine = full && approval.session_key && !approval.session_key.startsWith("bg:")
    ? h("a", { href: `/sessions/${encodeURIComponent(approval.session_key)}` }, "Session")
    : null;
  const card = h("article.approval",
    { data: { approval: approval.id, risk: approval.risk ?? "" }, tabindex: full ? "0" : null },
    h("p.approval-from.faint",
      h("b.approval-agent", approval.agent || "agent"),
      h("span", `${REQUESTS[approval.kind] ?? "asks"}, `, createAgo(approval.created_at)),
      approval.risk ? h("span.risk", { data: { risk: approval.risk } }, `${approval.risk} risk`) : null,
      taskLine, sessionLine,
      approval.expires_at ? h("span", h("mw-left", { at: approval.expires_at }), " left") : null),
    h(`p.approval-question.plain-text${isScreenText(approval) ? ".screen-text" : ""}`, approval.question),
    createRequestDetails(approval),
    h("div.approval-answers.action",
      h("div.approval-buttons", buttons.filter((button) => !button.matches(".always"))), why,
      alwaysButtons.length ? h("div.approval-always", alwaysButtons) : null),
    h("p.approval-done", { hidden: true, role: "status" }));
  if (approval.diff_bytes || approval.diff || (approval.fromEvent && KINDS_WITH_DIFF.has(approval.kind)))
    showDiff(card, approval, full);
  Object.assign(card, { allow: () => (findButton("allow_once") ?? buttons[0])?.click(), deny, why });
  card.showTask = () => {
    const task = taskLine && desk.running.get(approval.task_id);
    if (task?.prompt) setText(taskLine, getFirstLine(task.prompt, 60));
  };
  return card;
}

/** Create the details of a request: the command, the files or the tool. */
function createRequestDetails({ kind, tool, command, paths }) {
  const lines = [];
  if (command)
    lines.push(h("div.request-line", icon("terminal", 14), h("pre", { tabindex: "0" }, h("code", command)),
      createCopyButton(command, "Copy the command")));
  if (paths?.length)
    lines.push(h("div.request-line", icon(ICONS[kind] ?? "file", 14),
      h("pre", { tabindex: "0" }, h("code", paths.join("\n")))));
  if (tool && !command && !paths?.length) lines.push(h("div.request-line", icon("tool", 14),
    h("pre", h("code", tool))));
  return lines.length ? h("div.request-lines", lines) : null;
}

async function showDiff(card, approval, full) {
  const place = h("div.diffs", approval.diff ? null : h("p.faint", "Loading the change…"));
  card.querySelector(".approval-answers").before(place);
  const details = approval.diff ? approval : await get(`/approvals/${approval.id}`).catch(() => null);
  if (details && !details.diff) return place.remove();
  if (!details) return place.replaceChildren(h("p.faint", "The change could not be loaded."));
  const omitted = details.diff_left_out
    ? h("p.faint",
      `${details.diff_left_out} more bytes of the change are not shown. Check the files before you allow it.`)
    : "";
  return place.replaceChildren(
    ...createPatchDiffs(details.diff, { cut: Boolean(details.diff_left_out), open: full ? null : false }), omitted);
}

async function sendAnswer(approval, choice, why) {
  const path = `/approvals/${approval.id}/${choice.kind.startsWith("allow") ? "approve" : "deny"}`;
  desk.answeredHere.add(approval.id); // before its event arrives
  try {
    await post(path, { choice: choice.name, ...(why.trim() ? { why: why.trim() } : {}) });
    showToast(`Answered: ${choice.name}`);
  } catch (problem) {
    desk.answeredHere.delete(approval.id);
    if (problem.status !== 409 && problem.status !== 404) throw problem;
    showToast(problem.message, "bad"); // somebody else answered first, or the task has ended
  }
  desk.markAnswered(approval.id);
}

/** Show the open questions for which `filter` is true in `list`, and keep it up to date. With `showAnswer`, a question
 * that was answered elsewhere shows by whom before it disappears. While the pointer is over the list nothing moves up,
 * so that no button moves under a click that was meant for another. Returns a function that stops this. */
export function renderApprovals(list, {
  filter = () => true, withTask = true, full = false, showAnswer = false, onChange = () => {},
} = {}) {
  let isPointerOver = false;
  const leaving = new WeakMap();
  const compareUrgency = (a, b) => ((a.expires_at ?? a.created_at) < (b.expires_at ?? b.created_at) ? -1 : 1);
  const createCard = (approval) => createApprovalCard(approval, { withTask, full });
  const place = full ? stackChildren(list) : () => {};
  const draw = () => {
    const open = [...desk.approvals.values()].filter(filter).sort(compareUrgency);
    const isOpen = (node) => open.some((approval) => approval.id === node.dataset.approval);
    for (const node of list.children) if (!isOpen(node) && !leaving.has(node)) retire(node);
    const lastOpen = [...list.children].findLastIndex(isOpen);
    const kept = [...list.children].filter((node, at) =>
      !isOpen(node) && (leaving.get(node) || (isPointerOver && at < lastOpen)));
    for (const node of kept) node.inert = true;
    if (!kept.length) renderKeyed(list, open, (approval) => approval.id, createCard, (node) => node.showTask());
    else for (const approval of open) if (!list.keyedNodes.has(approval.id)) {
      const node = createCard(approval);
      list.keyedNodes.set(approval.id, node);
      list.append(node);
    }
    place();
    onChange(open.length);
  };
  const retire = (node) => {
    const resolution = desk.resolutions.get(node.dataset.approval);
    if (!showAnswer || !resolution?.status || desk.answeredHere.has(node.dataset.approval)) return leaving.set(node,
      false);
    setText(
      node.querySelector(".approval-done"),
      `${ANSWER_TEXTS[resolution.status] ?? resolution.status}${resolution.by ? ` by ${resolution.by}` : ""}` +
        `${resolution.answer && resolution.status !== "expired" ? `: ${resolution.answer}` : ""}`,
    ).hidden = false;
    leaving.set(node, true);
    setTimeout(() => { leaving.set(node, false); draw(); }, ANSWERED_MS);
    return undefined;
  };
  const enter = (moved) => { isPointerOver = moved.pointerType === "mouse"; };
  const exit = () => { isPointerOver = false; draw(); };
  list.addEventListener("pointerenter", enter);
  list.addEventListener("pointerleave", exit);
  const stops = [
    desk.on("approvals", draw), desk.on("tasks", () => { for (const node of list.children) node.showTask?.(); }),
  ];
  draw();
  return () => {
    stops.forEach((stop) => stop());
    list.removeEventListener("pointerenter", enter);
    list.removeEventListener("pointerleave", exit);
  };
}
