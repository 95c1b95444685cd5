// Inbox: open questions of all agents, recent answers, and the rules that answer automatically.

import { del, get, trackRequests } from "../api.js";
import { go } from "../app.js";
import { renderApprovals } from "../approval.js";
import { desk } from "../desk.js";
import { getFirstLine, h, renderKeyed, setText } from "../dom.js";
import { addShortcut, moveFocus } from "../keys.js";
import {
  confirmAction, createActionButton, createAgo, createCommand, createEmpty, createFailure, createPageHead, createPanel,
  createSkeleton, showToast,
} from "../parts.js";
import { stream } from "../stream.js";

const ANSWERED = 30;
const SOON = 250;

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
  const rules = createPanel("Approval rules", { name: "inbox-rules" });
  const keys = h("p.faint.inbox-keys.action",
    [
      ["j", "next"], ["k", "previous"], ["a", "allow"], ["d", "deny"], ["r", "reason"], ["Enter", "open"],
    ].map(([key, what]) => [h("kbd", key), ` ${what} `]));
  main.append(createPageHead("Inbox"), keys, h("div.inbox-grid", open.node, h("div.stack", answered.node, rules.node)));
  page.onLeave(renderApprovals(list, {
    full: true, showAnswer: true,
    onChange: (count) => { setText(open.counter, count || ""); empty.hidden = count > 0 || Boolean(list.firstChild); },
  }));
  page.onLeave(enableKeyboard(list));
  const readAnswered = createReader(answered.body, page, () => get(`/approvals?status=all&limit=${ANSWERED + 20}`),
    ({ approvals }) => drawAnswered(answered.body, approvals));
  const readRulePanel = createReader(rules.body, page, readRules,
    (reply) => drawRules(rules.body, reply, () => readRulePanel()));
  page.onLeave(stream.on({
    event: ({ kind }) => {
      if (kind === "approval_resolved") readAnswered();
      if (kind === "rule_added" || kind === "rule_revoked") readRulePanel();
    },
    reset: () => { readAnswered(); readRulePanel(); },
  }));
  readAnswered();
  readRulePanel();
}

/** Return a function that loads a part of the page: at once the first time, later after a short delay. */
function createReader(body, page, read, draw) {
  body.append(createSkeleton(3));
  const startRequest = trackRequests();
  let waiting = null;
  return () => {
    waiting ??= setTimeout(async () => {
      waiting = null;
      if (!page.isCurrent()) return;
      const { accept } = startRequest();
      try {
        const reply = await read();
        if (page.isCurrent() && accept()) draw(reply);
      } catch (problem) {
        if (page.isCurrent() && accept()) body.replaceChildren(createFailure(problem));
      }
    }, body.querySelector(".skeleton") ? 0 : SOON);
  };
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

const readRules = () =>
  get("/rules").catch((problem) => { if (problem.status === 403) return { rules: null }; throw problem; });

function drawRules(body, reply, again) {
  if (!reply.rules?.length)
    return body.replaceChildren(createEmpty(reply.rules ? "No rules" : "You cannot see the rules",
      reply.rules
        ? "An answer such as “always allow …” creates a rule. A rule answers automatically. " +
          "Its answers are in the log, and you can revoke it here."
        : "Your role does not allow it."));
  if (!body.list?.isConnected) body.replaceChildren((body.list = h("ol.rows", { "aria-label": "Approval rules" })));
  return renderKeyed(body.list, reply.rules, (rule) => rule.id, (rule) => createRuleRow(rule, again));
}

function createRuleRow(rule, again) {
  const revoke = createActionButton("Revoke", async () => {
    if (!(await confirmAction(`Revoke “${rule.text}”? Agents will ask about this again.`, "Revoke"))) return;
    await del(`/rules/${rule.id}`);
    showToast("Rule revoked.");
    again();
  }, { kind: "danger small action" });
  return h("li",
    h("div.row.rule-row",
      h("span.status", { data: { status: rule.effect === "allow" ? "done" : "failed" } }, rule.effect),
      h("span.rule-text.plain-text", rule.text), revoke,
      h("span.row-sub.faint", rule.created_by ? `by ${rule.created_by} ` : "from the settings ",
        rule.created_at ? createAgo(rule.created_at) : "")));
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
