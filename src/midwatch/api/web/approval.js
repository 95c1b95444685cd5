// A question and its answer buttons, wherever it is shown.

import { get, post } from "./api.js";
import { desk } from "./desk.js";
import { patchDiffs } from "./diff.js";
import { firstLine, h, keyed, say, stacked } from "./dom.js";
import { icon } from "./icons.js";
import { act, agoOf, copyButton, taskLink, toast } from "./parts.js";

const ORDER = ["allow_once", "reject_once", "allow_always", "reject_always"];
const WANTS = {
  read: "wants to read", edit: "wants to change", delete: "wants to remove", move: "wants to move",
  search: "wants to search", execute: "wants to run", fetch: "wants to fetch", think: "wants to think",
  switch_mode: "wants another mode",
};
const SHAPES = {
  read: "file", edit: "edit", delete: "bin", move: "move", search: "search", execute: "terminal", fetch: "globe",
  think: "thought",
};
const CHANGES = new Set(["edit", "delete", "move", "other"]); // an event does not tell the change, it may be large
const STAYS = 2500; // how long a card says who answered it elsewhere

/** Choices by what they mean: yes once, no once, then the standing ones. A plain question keeps its own order. */
function choicesOf({ choices, kind }) {
  if (!kind || kind === "choice") return choices;
  return [...choices].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
}

/** The card of an open question. */
export function approvalCard(approval, { withTask = true, full = false } = {}) {
  const why = h("input.why",
    { placeholder: "Reason (optional)", maxLength: 2000, "aria-label": "Reason for the answer" });
  const choices = choicesOf(approval);
  const first = choices.find((one) => one.kind === "allow_once") ?? choices[0];
  const buttons = choices.map((choice) => {
    const button = h("button", {
      type: "button", class: choice === first ? "primary" : choice.kind.endsWith("always") ? "standing" : "",
      title: choice.name,
    }, h("span.cut", choice.name));
    // one answer at a time
    button.addEventListener("click", () => act(card, () => act(button, () => answer(approval, choice, why.value))));
    return button;
  });
  const stands = buttons.filter((one) => one.matches(".standing"));
  const once = (kind) => buttons[choices.findIndex((one) => one.kind === kind)] ?? null;
  why.addEventListener("keydown", (pressed) => {
    if (pressed.key === "Enter") { pressed.preventDefault(); (once("reject_once") ?? once("reject_always"))?.click(); }
  });
  const about = withTask ? taskLink(approval.task_id, "its task") : null;
  const where = full && approval.session_key && !approval.session_key.startsWith("bg:")
    ? h("a", { href: `/sessions/${encodeURIComponent(approval.session_key)}` }, "its session")
    : null;
  const card = h("article.approval",
    { data: { approval: approval.id, risk: approval.risk ?? "" }, tabindex: full ? "0" : null },
    h("p.approval-from.faint",
      h("b.approval-agent", approval.agent || "an agent"),
      h("span", `${WANTS[approval.kind] ?? "asks"}, `, agoOf(approval.created_at)),
      approval.risk ? h("span.risk", { data: { risk: approval.risk } }, `${approval.risk} risk`) : null,
      about, where,
      approval.expires_at ? h("span", h("mw-left", { at: approval.expires_at }), " left") : null),
    h("p.approval-question.said", approval.question),
    wanted(approval),
    h("div.approval-answers.acts", h("div.approval-buttons", buttons.filter((one) => !one.matches(".standing"))), why,
      stands.length ? h("div.approval-stands", stands) : null),
    h("p.approval-done", { hidden: true, role: "status" }));
  if (approval.diff_bytes || approval.diff || (approval.fromEvent && CHANGES.has(approval.kind)))
    showDiff(card, approval, full);
  Object.assign(card, {
    allow: () => (once("allow_once") ?? buttons[0])?.click(),
    deny: () => (once("reject_once") ?? once("reject_always"))?.click(), why,
  });
  card.name = () => {
    const task = about && desk.running.get(approval.task_id);
    if (task?.prompt) say(about, firstLine(task.prompt, 60));
  };
  return card;
}

/** What exactly is asked for: the command, the files, the change. */
function wanted({ kind, tool, command, paths }) {
  const lines = [];
  if (command)
    lines.push(h("div.wanted", icon("terminal", 14), h("pre", { tabindex: "0" }, h("code", command)),
      copyButton(command, "Copy the command")));
  if (paths?.length)
    lines.push(h("div.wanted", icon(SHAPES[kind] ?? "file", 14),
      h("pre", { tabindex: "0" }, h("code", paths.join("\n")))));
  if (tool && !command && !paths?.length) lines.push(h("div.wanted", icon("tool", 14), h("pre", h("code", tool))));
  return lines.length ? h("div.wants", lines) : null;
}

async function showDiff(card, approval, full) {
  const place = h("div.diffs", approval.diff ? null : h("p.faint", "its change…"));
  card.querySelector(".approval-answers").before(place);
  const known = approval.diff ? approval : await get(`/approvals/${approval.id}`).catch(() => null);
  if (known && !known.diff) return place.remove();
  if (!known) return place.replaceChildren(h("p.faint", "Its change could not be read."));
  const left = known.diff_left_out
    ? h("p.faint",
      `${known.diff_left_out} more bytes of the change are left out here; look at the files before you allow it.`)
    : "";
  return place.replaceChildren(
    ...patchDiffs(known.diff, { cut: Boolean(known.diff_left_out), open: full ? null : false }), left);
}

async function answer(approval, choice, why) {
  const path = `/approvals/${approval.id}/${choice.kind.startsWith("allow") ? "approve" : "deny"}`;
  desk.mine.add(approval.id); // before its event comes
  try {
    await post(path, { choice: choice.name, ...(why.trim() ? { why: why.trim() } : {}) });
    toast(`Answered: ${choice.name}`);
  } catch (problem) {
    desk.mine.delete(approval.id);
    if (problem.status !== 409 && problem.status !== 404) throw problem;
    toast(problem.message, "bad"); // somebody else was faster, or nobody listens any more
  }
  desk.answered(approval.id);
}

const WORDS = { granted: "allowed", denied: "denied", expired: "not answered in time" };

/** Keep `list` equal to the open questions that `which` chooses. With `farewell`, what was answered elsewhere says by
 * whom before it goes. While the pointer is over the list nothing moves up, so that no button slips under a click that
 * was meant for another. Returns how to stop. */
export function approvalList(list, {
  which = () => true, withTask = true, full = false, farewell = false, changed = () => {},
} = {}) {
  let over = false;
  const leaving = new WeakMap();
  const urgent = (a, b) => ((a.expires_at ?? a.created_at) < (b.expires_at ?? b.created_at) ? -1 : 1);
  const make = (one) => approvalCard(one, { withTask, full });
  const place = full ? stacked(list) : () => {};
  const draw = () => {
    const open = [...desk.approvals.values()].filter(which).sort(urgent);
    const isOpen = (node) => open.some((one) => one.id === node.dataset.approval);
    for (const node of list.children) if (!isOpen(node) && !leaving.has(node)) takeLeave(node);
    const lastOpen = [...list.children].findLastIndex(isOpen);
    const kept = [...list.children].filter((node, at) =>
      !isOpen(node) && (leaving.get(node) || (over && at < lastOpen)));
    for (const node of kept) node.inert = true;
    if (!kept.length) keyed(list, open, (one) => one.id, make, (node) => node.name());
    else for (const one of open) if (!list.keyedNodes.has(one.id)) {
      const node = make(one);
      list.keyedNodes.set(one.id, node);
      list.append(node);
    }
    place();
    changed(open.length);
  };
  const takeLeave = (node) => {
    const found = desk.resolutions.get(node.dataset.approval);
    if (!farewell || !found?.status || desk.mine.has(node.dataset.approval)) return leaving.set(node, false);
    say(
      node.querySelector(".approval-done"),
      `${WORDS[found.status] ?? found.status}${found.by ? ` by ${found.by}` : ""}` +
        `${found.answer && found.status !== "expired" ? `: ${found.answer}` : ""}`,
    ).hidden = false;
    leaving.set(node, true);
    setTimeout(() => { leaving.set(node, false); draw(); }, STAYS);
    return undefined;
  };
  const enter = (moved) => { over = moved.pointerType === "mouse"; };
  const exit = () => { over = false; draw(); };
  list.addEventListener("pointerenter", enter);
  list.addEventListener("pointerleave", exit);
  const stops = [
    desk.on("approvals", draw), desk.on("tasks", () => { for (const node of list.children) node.name?.(); }),
  ];
  draw();
  return () => {
    stops.forEach((stop) => stop());
    list.removeEventListener("pointerenter", enter);
    list.removeEventListener("pointerleave", exit);
  };
}
