// Inbox: every open question of every agent, what was answered lately, and the rules that answer by themselves.

import { asking, del, get } from "../api.js";
import { go } from "../app.js";
import { approvalList } from "../approval.js";
import { desk } from "../desk.js";
import { firstLine, h, keyed, say } from "../dom.js";
import { shortcut } from "../keys.js";
import { actButton, agoOf, command, confirmed, empty, failure, pageHead, panel, skeleton, toast } from "../parts.js";
import { stream } from "../stream.js";

const ANSWERED = 30;
const SOON = 250;

export default async function inbox(main, page) {
  page.setTitle("Inbox");
  main.className = "inbox-page";
  const open = panel("Open", { name: "inbox-open", count: true });
  const list = h("div.approvals");
  const none = empty("Nobody asks",
    "When an agent asks before it acts, its question waits here until it is answered or its time is up.",
    command('midwatch submit "demo:ask clean up"'));
  open.body.append(list, none);
  const answered = panel("Answered", { name: "inbox-answered" });
  const rules = panel("Standing rules", { name: "inbox-rules" });
  const keys = h("p.faint.inbox-keys.acts",
    [
      ["j", "next"], ["k", "before"], ["a", "allow"], ["d", "deny"], ["r", "reason"], ["Enter", "open"],
    ].map(([key, what]) => [h("kbd", key), ` ${what} `]));
  main.append(pageHead("Inbox"), keys, h("div.inbox-grid", open.node, h("div.stack", answered.node, rules.node)));
  page.whenLeft(approvalList(list, {
    full: true, farewell: true,
    changed: (count) => { say(open.counter, count || ""); none.hidden = count > 0 || Boolean(list.firstChild); },
  }));
  page.whenLeft(byKeyboard(list));
  const past = reader(answered.body, page, () => get(`/approvals?status=all&limit=${ANSWERED + 20}`),
    ({ approvals }) => drawAnswered(answered.body, approvals));
  const standing = reader(rules.body, page, readRules, (found) => drawRules(rules.body, found, () => standing()));
  page.whenLeft(stream.on({
    event: ({ kind }) => {
      if (kind === "approval_resolved") past();
      if (kind === "rule_added" || kind === "rule_revoked") standing();
    },
    reset: () => { past(); standing(); },
  }));
  past();
  standing();
}

/** Read a part of the page now, and again soon after it is asked for. */
function reader(body, page, read, draw) {
  body.append(skeleton(3));
  const ask = asking();
  let waiting = null;
  return () => {
    waiting ??= setTimeout(async () => {
      waiting = null;
      if (!page.isShown()) return;
      const { isNext } = ask();
      try {
        const found = await read();
        if (page.isShown() && isNext()) draw(found);
      } catch (problem) {
        if (page.isShown() && isNext()) body.replaceChildren(failure(problem));
      }
    }, body.querySelector(".skeleton") ? 0 : SOON);
  };
}

const WORDS = { granted: "allowed", denied: "denied", expired: "expired" };

function drawAnswered(body, approvals) {
  const past = approvals.filter((one) => one.status !== "pending").slice(0, ANSWERED);
  if (!past.length)
    return body.replaceChildren(empty("Nothing answered yet",
      "What was asked, and who answered it how, is listed here."));
  if (!body.list?.isConnected) body.replaceChildren((body.list = h("ol.rows", { "aria-label": "Answered" })));
  return keyed(body.list, past, (one) => one.id, answeredRow);
}

function answeredRow(one) {
  const by = one.rule && one.answered_by?.startsWith("rule:") ? `by rule: ${one.rule}`
    : one.answered_by ? `by ${one.answered_by}`
    : one.why ? ""
    : "nobody answered";
  const how = [one.answer, by, one.why ? `“${one.why}”` : ""].filter(Boolean).join(" · ");
  return h("li", h("a.row.answered-row", { href: `/tasks/${one.task_id}` },
    h("span.status", { data: { status: { granted: "done", denied: "failed", expired: "cancelled" }[one.status] } },
      WORDS[one.status]),
    h("span.cut.row-title", { title: one.question }, one.command ?? firstLine(one.question)), h("span.tag", one.agent),
    agoOf(one.resolved_at ?? one.created_at),
    h("span.row-sub.cut", { title: how }, how)));
}

const readRules = () =>
  get("/rules").catch((problem) => { if (problem.status === 403) return { rules: null }; throw problem; });

function drawRules(body, found, again) {
  if (!found.rules?.length)
    return body.replaceChildren(empty(found.rules ? "No rules" : "Not for you to see",
      found.rules
        ? "An answer such as “always allow …” makes one. " +
          "It answers by itself, is told in the log, and can be taken back here."
        : ""));
  if (!body.list?.isConnected) body.replaceChildren((body.list = h("ol.rows", { "aria-label": "Standing rules" })));
  return keyed(body.list, found.rules, (one) => one.id, (one) => ruleRow(one, again));
}

function ruleRow(one, again) {
  const revoke = actButton("Revoke", async () => {
    if (!(await confirmed(`Take back “${one.text}”? It will be asked about again.`, "Revoke"))) return;
    await del(`/rules/${one.id}`);
    toast("The rule is taken back.");
    again();
  }, { kind: "danger small acts" });
  return h("li",
    h("div.row.rule-row",
      h("span.status", { data: { status: one.effect === "allow" ? "done" : "failed" } }, one.effect),
      h("span.rule-text.said", one.text), revoke,
      h("span.row-sub.faint", "by ", one.created_by ?? "the settings", " ",
        one.created_at ? agoOf(one.created_at) : "")));
}

/** j and k go from card to card, a and d answer the one that has the focus, Enter opens it. */
function byKeyboard(list) {
  const cards = () => [...list.children].filter((node) => !node.inert);
  const current = () => document.activeElement?.closest?.("article.approval");
  const step = (by) => {
    const all = cards();
    const at = all.indexOf(current());
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : at + by];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
    return Boolean(next);
  };
  const answer = (how) => () => {
    const card = current();
    if (!card || !desk.may.act) return step(1); // nothing is answered that nobody has looked at
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
    shortcut("j", "Next row or question", () => step(1)), shortcut("k", "Row or question before", () => step(-1)),
    shortcut("a", "Allow the question", answer("allow")), shortcut("d", "Deny the question", answer("deny")),
    shortcut("r", "Write a reason", () => { current()?.why.focus(); return Boolean(current()); }),
  ];
  return () => stops.forEach((stop) => stop());
}
