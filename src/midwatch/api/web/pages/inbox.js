// Inbox: open questions of all agents, and recent answers.

import { get } from "../api.js";
import { go } from "../app.js";
import { renderApprovals } from "../approval.js";
import { desk } from "../desk.js";
import { getFirstLine, h, renderKeyed, setText } from "../dom.js";
import { addShortcut, moveFocus } from "../keys.js";
import { createAgo, createCommand, createEmpty, createPageHead, createPanel } from "../parts.js";
import { createReader } from "../reader.js";
import { stream } from "../stream.js";

const ANSWERED = 30;

export default async function renderInbox(main, page) {
  page.setTitle("Inbox");
  main.className = "inbox-page";
  const open = createPanel("Open questions", { name: "inbox-open", count: true });
  const list = h("div.approvals");
  const empty = createEmpty("Nothing is waiting for you",
    "When an agent asks a question, it is shown here until it is answered or expires.",
    createCommand('midwatch submit "demo:ask clean up"'));
  open.body.append(list, empty);
  const answered = createPanel("Answered", { name: "inbox-answered" });
  const keys = h("p.faint.inbox-keys.action",
    [
      ["j", "next"], ["k", "previous"], ["a", "allow"], ["d", "deny"], ["r", "reason"], ["Enter", "open"],
    ].map(([key, what]) => [h("kbd", key), ` ${what} `]));
  main.append(createPageHead("Inbox", h("a.button", { href: "/rules" }, "Rules")), keys,
    h("div.inbox-grid", open.node, answered.node));
  let wanted = page.search.get("question");
  page.onLeave(renderApprovals(list, {
    full: true, showAnswer: true,
    onChange: (count) => {
      setText(open.counter, count || "");
      empty.hidden = count > 0 || Boolean(list.firstChild);
      const card = wanted && [...list.children].find((node) => node.dataset.approval === wanted);
      if (!card) return;
      wanted = null; // focused once
      card.focus();
    },
  }));
  page.onLeave(enableKeyboard(list));
  const readAnswered = createReader(answered.body, page, () => get(`/approvals?status=all&limit=${ANSWERED + 20}`),
    ({ approvals }) => drawAnswered(answered.body, approvals));
  page.onLeave(stream.on({
    event: ({ kind }) => { if (kind === "approval_resolved") readAnswered(); },
    reset: readAnswered,
  }));
  readAnswered();
}

const ANSWER_NAMES = { granted: "allowed", denied: "denied", expired: "expired" };

function drawAnswered(body, approvals) {
  const answered = approvals.filter((approval) => approval.status !== "pending").slice(0, ANSWERED);
  if (!answered.length)
    return body.replaceChildren(createEmpty("No answers yet",
      "Answered questions are listed here, with the answer and who gave it."));
  if (!body.list?.isConnected) body.replaceChildren((body.list = h("ol.rows", { "aria-label": "Answered" })));
  return renderKeyed(body.list, answered, (approval) => approval.id, createAnsweredRow);
}

function createAnsweredRow(approval) {
  const by = approval.rule && approval.answered_by?.startsWith("rule:") ? `by rule: ${approval.rule}`
    : approval.answered_by ? `by ${approval.answered_by}`
    : approval.why ? ""
    : "no answer";
  const how = [approval.answer, by, approval.why ? `“${approval.why}”` : ""].filter(Boolean).join(" · ");
  return h("li", h("a.row.answered-row", { href: `/tasks/${approval.task_id}` },
    h("span.status", { data: { status: { granted: "done", denied: "failed", expired: "cancelled" }[approval.status] } },
      ANSWER_NAMES[approval.status]),
    h("span.truncate.row-title", { title: approval.question }, approval.command ?? getFirstLine(approval.question)),
    h("span.tag", approval.agent),
    createAgo(approval.resolved_at ?? approval.created_at),
    h("span.row-sub.truncate", { title: how }, how)));
}

/** Add shortcuts: j and k move between cards, a and d answer the focused card, Enter opens it. */
function enableKeyboard(list) {
  const cards = () => [...list.children].filter((node) => !node.inert);
  const current = () => document.activeElement?.closest?.("article.approval");
  const step = (by) => moveFocus(cards(), current(), by);
  const answer = (how) => () => {
    const card = current();
    if (!card || !desk.may.act) return step(1); // only a focused question is answered
    const at = cards().indexOf(card);
    card[how]();
    const stop = new MutationObserver(() => {
      if (card.isConnected && !card.inert) return;
      stop.disconnect();
      if (document.activeElement === document.body || card.contains(document.activeElement))
        (cards()[at] ?? cards().at(-1))?.focus();
    });
    stop.observe(list, { childList: true, attributes: true, subtree: true });
    setTimeout(() => stop.disconnect(), 30000);
    return true;
  };
  const enter = (pressed) => {
    if (pressed.key !== "Enter" || !pressed.target.matches("article.approval")) return;
    pressed.preventDefault();
    go((pressed.target.querySelector(".approval-from a[href^='/sessions/']") ??
      pressed.target.querySelector(".approval-from a")).pathname);
  };
  list.addEventListener("keydown", enter);
  const stops = [
    addShortcut("j", "Next row or question", () => step(1)),
    addShortcut("k", "Previous row or question", () => step(-1)),
    addShortcut("a", "Allow the focused question", answer("allow")),
    addShortcut("d", "Deny the focused question", answer("deny")),
    addShortcut("r", "Write a reason", () => { current()?.why.focus(); return Boolean(current()); }),
  ];
  return () => stops.forEach((stop) => stop());
}
