// One handoff: the work, who has it and had it, what went along, what came of it.

import { asking, get, post } from "../api.js";
import { onward } from "../app.js";
import { h, keyed, perFrame, say, set, wishKey } from "../dom.js";
import {
  actButton, attribute, confirmed, copyButton, elapsed, pageHead, panel, skeleton, taskLink, toast,
} from "../parts.js";
import { isOpenHandoff, rootOf, sourceOf, targetOf, updateMark, wayOf, whatOf } from "../handoff-parts.js";
import { follow, known } from "../automation-parts.js";
import { dateTime, length } from "../time.js";

const FORMS = { delegate: "delegate: the answer comes back", transfer: "transfer: the conversation has moved" };
const asText = (value) =>
  (value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value, null, 2));

export default async function handoff(main, page) {
  const { id } = page.params;
  page.setTitle("Handoff");
  main.className = "task-page";
  const view = build(main, id);
  let one = null;
  const draw = perFrame(() => page.isShown() && one && drawAll(view, one, page));
  const ask = asking();
  const read = async () => {
    const { isNext } = ask();
    const found = await get(`/handoffs/${id}`);
    if (isNext()) one = found;
    draw();
  };
  const first = read();
  follow(page, {
    first,
    concerns: (event) => (event.kind.startsWith("handoff_") && event.payload.handoff_id === id ? id : null),
    read: () => read().catch(() => {}), reset: () => read().catch(() => {}),
  });
  await first;
}

function build(main, id) {
  const view = {
    title: h("h1.cut", "…"), status: set(h("span.status"), { role: "status" }), way: h("span"), time: elapsed(null),
    told: h("p.told.standing-note"), buttons: h("span.task-buttons.acts"), facts: h("dl.facts"),
    work: h("div.said.clamped-text"), answer: h("div.said"), said: h("ol.history"),
  };
  const texts = (title, node, name = "") => {
    const made = panel(title, { name, actions: [copyButton(() => node.textContent, `Copy: ${title}`)] });
    made.body.classList.add("padded");
    made.body.append(node);
    return made.node;
  };
  view.history = texts("What went along", view.said);
  const about = panel("About");
  about.body.classList.add("padded");
  about.body.append(view.facts);
  const head = pageHead("");
  head.replaceChildren(h("nav.crumbs", { "aria-label": "Where" }, h("a", { href: "/handoffs" }, "Handoffs")),
    view.title, h("span.spacer"), view.buttons);
  view.body = h("div", { hidden: true }, head,
    h("p.task-line", view.status, view.way, h("span", view.time), h("span.spacer"), h("code.faint", id)), view.told,
    h("div.task-grid",
      h("div.stack", texts("Work", view.work), texts("Answer", view.answer, "handoff-answer"), view.history),
      h("div.stack", about.node)));
  view.loading = skeleton(8);
  main.append(view.loading, view.body);
  return view;
}

function drawAll(view, one, page) {
  view.loading.remove();
  view.body.hidden = false;
  page.setTitle(whatOf(one, 100));
  say(view.title, whatOf(one, 200));
  updateMark(view.status, one);
  view.way.replaceChildren(wayOf(one));
  attribute(view.time, "from", one.created_at);
  attribute(view.time, "to", one.completed_at);
  const why = one.status === "completed" ? "" : (one.reason ?? "");
  say(view.told, why);
  view.told.hidden = !why;
  view.told.classList.toggle("care", ["failed", "rejected", "expired"].includes(one.status));
  say(view.work, [one.task.description, asText(one.task.input)].filter(Boolean).join("\n\n"));
  say(view.answer, asText(one.result?.output) || (isOpenHandoff(one) ? "Nothing yet." : "There is no answer."));
  view.answer.classList.toggle("faint", !asText(one.result?.output));
  keyed(view.said, one.context.messages.map((message, at) => ({ ...message, at })), (message) => message.at,
    (message) => h("li", h("b", message.role), h("div.said", asText(message.content) || asText(message.tool_calls))));
  view.history.hidden = !one.context.messages.length;
  drawButtons(view.buttons, one);
  drawFacts(view.facts, one);
}

function drawButtons(place, one) {
  const wanted = isOpenHandoff(one) ? "cancel" : one.status === "completed" ? "" : "retry";
  if (place.dataset.shown === wanted) return; // what is pressed in one moment must still be there when it is let go
  place.dataset.shown = wanted;
  const cancel = async () => {
    if (await confirmed("End this handoff? Its task is stopped.", "Cancel the handoff"))
      await post(`/handoffs/${one.id}/cancel`);
  };
  const key = wishKey();
  const retry = async () => {
    const lead = onward();
    const made = await post(`/handoffs/${one.id}/retry`, {}, { key });
    toast("Handed over again.");
    lead(`/handoffs/${made.id}`);
  };
  place.replaceChildren(...{
    cancel: [actButton("Cancel", cancel, { kind: "danger", iconName: "stop" })],
    retry: [actButton("Retry", retry, { kind: "primary", iconName: "retry" })],
  }[wanted] ?? []);
}

function drawFacts(list, one) {
  const facts = known([
    ["From", sourceOf(one)], ["To", targetOf(one)], ["Type", one.task.type], ["Form", FORMS[one.form]],
    ["Way", one.chain.length ? [...one.chain.map((link) => link.agent), targetOf(one)].join(" → ") : null],
    ["Refused by", one.refusals.map((refusal) => `${refusal.agent}: ${refusal.reason}`).join("\n")],
    ["Its task", one.task_id ? taskLink(one.task_id, one.task_id) : null],
    ["Out of task", one.source_task ? taskLink(one.source_task, one.source_task) : null],
    [
      "See also",
      one.task_id || one.root_id
        ? h("a", { href: `/handoffs?root=${encodeURIComponent(rootOf(one))}` }, "all handoffs of the same root")
        : null,
    ],
    ["Retry of", one.retry_of ? h("a", { href: `/handoffs/${one.retry_of}` }, one.retry_of) : null],
    ["Tries", one.max_retries ? `${one.retry_count + 1} of ${one.max_retries + 1}` : null],
    [
      "Failed tries",
      one.retry_count
        ? one.attempts.filter((tried) => tried.error).map((tried) => `${tried.attempt}: ${tried.error}`).join("\n")
        : null,
    ],
    ["Asked by", one.creator], ["Asked", dateTime(one.created_at)],
    ["Taken", one.accepted_at && dateTime(one.accepted_at)], ["Ended", one.completed_at && dateTime(one.completed_at)],
    ["Deadline", `${dateTime(one.deadline_at)} (${length(one.timeout)})`],
    [
      "Came late",
      one.late && one.late.outcome !== "cancelled"
        ? [one.late.outcome, asText(one.late.output ?? one.late.error)].filter(Boolean).join(": ")
        : null,
    ],
  ]);
  keyed(list, facts, ([name]) => name, ([name]) => h("div.fact", h("dt", name), h("dd")), (node, [, value]) => {
    if (value instanceof Node) {
      if (node.lastChild.textContent !== value.textContent) node.lastChild.replaceChildren(value);
    } else say(node.lastChild, value);
  });
}
