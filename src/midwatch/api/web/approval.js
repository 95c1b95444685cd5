// A question and its answer buttons, wherever it is shown.

import { post } from "./api.js";
import { desk } from "./desk.js";
import { firstLine, h, keyed, say } from "./dom.js";
import { act, agoOf, taskLink, toast } from "./parts.js";

/** The card of an open question. What a choice means its kind tells. */
export function approvalCard(approval, { withTask = true } = {}) {
  const why = h("input.why", { placeholder: "Reason (optional)", maxLength: 2000, "aria-label": "Reason for the answer" });
  const first = approval.choices.findIndex((choice) => choice.kind.startsWith("allow"));
  const buttons = approval.choices.map((choice, index) => {
    const button = h("button", { type: "button", class: index === first ? "primary" : "" }, choice.name);
    const yes = choice.kind.startsWith("allow");
    button.addEventListener("click", () => act(button, () => answer(approval, choice.name, yes, why.value)));
    return button;
  });
  const expires = approval.expires_at ? h("span.faint", "expires ", h("mw-ago", { at: approval.expires_at })) : null;
  const about = withTask ? taskLink(approval.task_id, "its task") : null;
  const card = h("article.approval", { data: { approval: approval.id } },
    h("p.approval-question.said", approval.question),
    h("p.approval-from.faint",
      h("span", approval.agent || "an agent", " asked ", agoOf(approval.created_at)),
      about,
      expires),
    h("div.approval-answers.acts", h("div.approval-buttons", buttons), why));
  card.name = () => {
    const task = about && desk.running.get(approval.task_id);
    if (task?.prompt) say(about, firstLine(task.prompt, 60));
  };
  return card;
}

async function answer(approval, choice, yes, why) {
  const path = `/approvals/${approval.id}/${yes ? "approve" : "deny"}`;
  try {
    await post(path, { choice, ...(why.trim() ? { why: why.trim() } : {}) });
    toast(`Answered: ${choice}`);
  } catch (problem) {
    if (problem.status !== 409 && problem.status !== 404) throw problem;
    toast(problem.message, "bad"); // somebody else was faster, or nobody listens any more
  }
  desk.answered(approval.id);
}

/** Keep `list` equal to the open questions that `which` chooses. While the pointer is over it nothing moves up, so that
 * no button slips under a click that was meant for another. Returns how to stop. */
export function approvalList(list, { which = () => true, withTask = true, changed = () => {} } = {}) {
  let over = false;
  const draw = () => {
    const open = [...desk.approvals.values()].filter(which).sort((a, b) => (a.created_at < b.created_at ? -1 : 1));
    const isOpen = (node) => open.some((one) => one.id === node.dataset.approval);
    const lastOpen = [...list.children].findLastIndex(isOpen);
    const gone = over ? [...list.children].filter((node, at) => !isOpen(node) && at < lastOpen) : [];
    for (const node of gone) node.inert = true;
    if (!gone.length) keyed(list, open, (one) => one.id, (one) => approvalCard(one, { withTask }), (node) => node.name());
    else for (const one of open) if (!list.keyedNodes.has(one.id)) {
      const node = approvalCard(one, { withTask });
      list.keyedNodes.set(one.id, node);
      list.append(node);
    }
    changed(open.length);
  };
  const enter = (moved) => { over = moved.pointerType === "mouse"; };
  const exit = () => { over = false; draw(); };
  list.addEventListener("pointerenter", enter);
  list.addEventListener("pointerleave", exit);
  const stops = [desk.on("approvals", draw), desk.on("tasks", () => { for (const node of list.children) node.name(); })];
  draw();
  return () => {
    stops.forEach((stop) => stop());
    list.removeEventListener("pointerenter", enter);
    list.removeEventListener("pointerleave", exit);
  };
}

