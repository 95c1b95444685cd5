// One handoff: its work, agents, included messages and answer.

import { get, post, trackRequests } from "../api.js";
import { createNavigator } from "../app.js";
import { createRequestKey, h, limitToFrame, renderKeyed, setText } from "../dom.js";
import {
  confirmAction, createActionButton, createDetailHead, createElapsed, createPanel, createSkeleton, createTaskLink,
  createTextPanel, renderFacts, setAttribute, showToast,
} from "../parts.js";
import {
  createParties, describeWork, getRoot, getSource, getTarget, isOpenHandoff, updateHandoffStatus,
} from "../handoff-parts.js";
import { followEvents } from "../automation-parts.js";
import { formatDateTime, formatPeriod } from "../time.js";

const FORMS = { delegate: "delegate: the answer returns", transfer: "transfer: the session moves" };
const formatValue = (value) =>
  (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));

export default async function renderHandoff(main, page) {
  const { id } = page.params;
  page.setTitle("Handoff");
  main.className = "task-page";
  const view = buildPage(main, id);
  let handoff = null;
  const draw = limitToFrame(() => page.isCurrent() && handoff && drawAll(view, handoff, page));
  const startRequest = trackRequests();
  const read = async () => {
    const { accept } = startRequest();
    const reply = await get(`/handoffs/${id}`);
    if (accept()) handoff = reply;
    draw();
  };
  const first = read();
  followEvents(page, {
    first,
    findSubject: (event) => (event.kind.startsWith("handoff_") && event.payload.handoff_id === id ? id : null),
    read: () => read().catch(() => {}), reset: () => read().catch(() => {}),
  });
  await first;
}

function buildPage(main, id) {
  const view = {
    title: h("h1.truncate", "…"), status: h("span.status", { role: "status" }), parties: h("span"),
    time: createElapsed(null),
    note: h("p.status-note"), buttons: h("span.task-buttons.action"), facts: h("dl.facts"),
    work: h("div.plain-text.clamped-text"), answer: h("div.plain-text"), messages: h("ol.history"),
  };
  view.history = createTextPanel("Included messages", view.messages);
  view.body = h("div", { hidden: true }, createDetailHead("/handoffs", "Handoffs", view.title, view.buttons),
    h("p.task-line", view.status, view.parties, h("span", view.time), h("span.spacer"), h("code.faint", id)), view.note,
    h("div.task-grid",
      h("div.stack", createTextPanel("Work", view.work), createTextPanel("Answer", view.answer, "handoff-answer"),
        view.history),
      h("div.stack", createPanel("About", { content: [view.facts] }).node)));
  view.loading = createSkeleton(8);
  main.append(view.loading, view.body);
  return view;
}

function drawAll(view, handoff, page) {
  view.loading.remove();
  view.body.hidden = false;
  page.setTitle(describeWork(handoff, 100));
  setText(view.title, describeWork(handoff, 200));
  updateHandoffStatus(view.status, handoff);
  view.parties.replaceChildren(createParties(handoff));
  setAttribute(view.time, "from", handoff.created_at);
  setAttribute(view.time, "to", handoff.completed_at);
  const reason = handoff.status === "completed" ? "" : (handoff.reason ?? "");
  setText(view.note, reason);
  view.note.hidden = !reason;
  view.note.classList.toggle("warning", ["failed", "rejected", "expired"].includes(handoff.status));
  setText(view.work, [handoff.task.description, formatValue(handoff.task.input)].filter(Boolean).join("\n\n"));
  setText(view.answer, formatValue(handoff.result?.output) ||
    (isOpenHandoff(handoff) ? "No answer yet." : "No answer."));
  view.answer.classList.toggle("faint", !formatValue(handoff.result?.output));
  renderKeyed(view.messages, handoff.context.messages.map((message, at) => ({ ...message, at })),
    (message) => message.at,
    (message) => h("li", h("b", message.role),
      h("div.plain-text", formatValue(message.content) || formatValue(message.tool_calls))));
  view.history.hidden = !handoff.context.messages.length;
  drawButtons(view.buttons, handoff);
  drawFacts(view.facts, handoff);
}

function drawButtons(place, handoff) {
  const action = isOpenHandoff(handoff) ? "cancel" : handoff.status === "completed" ? "" : "retry";
  if (place.dataset.action === action) return; // a button that is replaced while it is pressed is never clicked
  place.dataset.action = action;
  const cancel = async () => {
    if (await confirmAction("Cancel this handoff? Its task is stopped.", "Cancel handoff"))
      await post(`/handoffs/${handoff.id}/cancel`);
  };
  const key = createRequestKey();
  const retry = async () => {
    const navigate = createNavigator();
    const retried = await post(`/handoffs/${handoff.id}/retry`, {}, { key });
    showToast("Handoff started again.");
    navigate(`/handoffs/${retried.id}`);
  };
  place.replaceChildren(...{
    cancel: [createActionButton("Cancel", cancel, { kind: "danger", iconName: "stop" })],
    retry: [createActionButton("Retry", retry, { kind: "primary", iconName: "retry" })],
  }[action] ?? []);
}

function drawFacts(list, handoff) {
  renderFacts(list, [
    ["From", getSource(handoff)], ["To", getTarget(handoff)], ["Type", handoff.task.type],
    ["Form", FORMS[handoff.form]],
    ["Path", handoff.chain.length ? [...handoff.chain.map((link) => link.agent), getTarget(handoff)].join(" → ")
      : null],
    ["Refused by", handoff.refusals.map((refusal) => `${refusal.agent}: ${refusal.reason}`).join("\n")],
    ["Task", handoff.task_id ? createTaskLink(handoff.task_id, handoff.task_id) : null],
    ["Source task", handoff.source_task ? createTaskLink(handoff.source_task, handoff.source_task) : null],
    [
      "See also",
      handoff.task_id || handoff.root_id
        ? h("a", { href: `/handoffs?root=${encodeURIComponent(getRoot(handoff))}` },
          "All handoffs with the same root task")
        : null,
    ],
    ["Retry of", handoff.retry_of ? h("a", { href: `/handoffs/${handoff.retry_of}` }, handoff.retry_of) : null],
    ["Attempts", handoff.max_retries ? `${handoff.retry_count + 1} of ${handoff.max_retries + 1}` : null],
    [
      "Failed attempts",
      handoff.retry_count
        ? handoff.attempts.filter((attempt) => attempt.error).map(({ attempt, error }) =>
          `${attempt}: ${error}`).join("\n")
        : null,
    ],
    ["Requested by", handoff.creator], ["Requested", formatDateTime(handoff.created_at)],
    ["Accepted", handoff.accepted_at && formatDateTime(handoff.accepted_at)],
    ["Ended", handoff.completed_at && formatDateTime(handoff.completed_at)],
    ["Deadline", `${formatDateTime(handoff.deadline_at)} (${formatPeriod(handoff.timeout)})`],
    [
      "Late result",
      handoff.late && handoff.late.outcome !== "cancelled"
        ? [handoff.late.outcome, formatValue(handoff.late.output ?? handoff.late.error)].filter(Boolean).join(": ")
        : null,
    ],
  ]);
}
