// The conversation of a session: messages, the work between them, and the text that is being written.

import { desk } from "./desk.js";
import { h, insertSanitised, renderKeyed, setText } from "./dom.js";
import { formatUsage } from "./figures.js";
import { createEmpty, createTaskLink } from "./parts.js";
import { grow } from "./partial.js";
import { drawSteps } from "./steps.js";
import { formatDateTime, formatTime } from "./time.js";

/** Show the messages of a session and what its agent does now. */
export function renderConversation(view, data, closed) {
  const messages = [...data.messages.values()].sort((a, b) => a.number - b.number);
  renderKeyed(view.conversation, mergeSteps(messages, data.events ? data.work.steps : []),
    (entry) => entry.key ?? entry.number,
    (entry) => (entry.steps ? h("li.work", h("ol.steps-list")) : createMessage(entry, data.session.agent)),
    (node, entry) => {
      if (entry.steps) return drawSteps(node.firstChild, entry.steps);
      setText(node.when, DELIVERY_WAITS[data.steers.get(entry.id)?.mode] ?? "");
      const html = data.html.get(entry.number);
      if (html != null && node.html !== html && !node.matches(".no-answer")) {
        node.html = html;
        node.text.className = "page-text";
        insertSanitised(node.text, html);
      }
      return undefined;
    });
  view.earlier.hidden = !messages.length || messages[0].number <= 1;
  view.conversation.querySelector(".empty")?.remove();
  if (!messages.length && !data.queue.size && !data.running && !closed)
    view.conversation.append(createEmpty("Write the first message",
      "The agent answers here. You can send more messages while it works; they wait in the queue."));
  const partials = [...data.partials.values()].filter((partial) => partial.text);
  const isQuiet = data.running && data.running.wait !== "approval" &&
    !data.work.steps.some((step) => step.task === data.running.id);
  // steps already show that the agent works, and would move this line down
  const visible = partials.length || !isQuiet ? partials : [{ id: "thinking", text: "" }];
  renderKeyed(view.partials, visible, (partial) => partial.id, (partial) => {
    const text = h("div.plain-text");
    const node = h("li.message.agent.writing",
      h("p.message-head", h("b", data.session.agent),
        h("span.faint", partial.id === "thinking" ? "working" : "writing")),
      text);
    node.text = text;
    return node;
  }, (node, partial) => grow(node.text, partial.text));
}

/** Merge messages and steps by time; consecutive steps become one entry. */
export function mergeSteps(messages, steps) {
  const isComplete = !messages.length || messages[0].number <= 1;
  const visible = steps.filter((step) =>
    (step.kind !== "turn" || step.tools || formatUsage(step.usage)) && (isComplete || step.time >= messages[0].time));
  const entries = [];
  let at = 0;
  const takeStepsUntil = (time) => {
    const run = [];
    while (at < visible.length && (time === null || visible[at].time < time)) run.push(visible[at++]);
    if (run.length) entries.push({ key: `work ${run[0].key}`, steps: run });
  };
  for (const message of messages) {
    takeStepsUntil(message.time);
    entries.push(message);
  }
  takeStepsUntil(null);
  return entries;
}

// several people may write in one session
const getSpeaker = (message) => (message.author && message.author !== desk.me?.actor ? message.author : "you");
function getName(message, agent) {
  if (message.role === "user") return getSpeaker(message);
  if (message.role === "result") return message.author ? `result of ${message.author}` : "result";
  return message.role === "notice" ? "midwatch" : agent;
}
const FAILED = /^\[(failed|cancelled)(: \w+)?\]/; // how a stored message marks a missing answer

const DELIVERY_WAITS = {
  interrupt: "waiting for the next step", after_tool: "waiting for the tool", stop: "waiting for the next step",
};

function createMessage(message, agent) {
  const when = h("span.tag.waiting-tag");
  const text = h("div.plain-text", message.text);
  const node = h("li.message",
    { class: `${message.role}${message.role === "agent" && FAILED.test(message.text) ? " no-answer" : ""}` },
    h("p.message-head", h("b", getName(message, agent)),
      h("span.faint.num", { title: formatDateTime(message.time) }, formatTime(message.time)), when,
      message.task_id ? createTaskLink(message.task_id, "task") : null),
    text);
  node.text = text;
  node.when = when;
  return node;
}
