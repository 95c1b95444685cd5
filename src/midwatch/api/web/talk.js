// What was said in a session, with what was done between the messages, and what is being written.

import { desk } from "./desk.js";
import { h, insertSanitised, keyed, say } from "./dom.js";
import { usageText } from "./figures.js";
import { empty, taskLink } from "./parts.js";
import { grow } from "./partial.js";
import { drawSteps } from "./steps.js";
import { dateTime, timeOfDay } from "./time.js";

/** The messages of `data` and what is done now, as far as it is told. */
export function drawTalk(view, data, closed) {
  const messages = [...data.messages.values()].sort((a, b) => a.number - b.number);
  keyed(view.talk, together(messages, data.events ? data.work.steps : []), (one) => one.key ?? one.number,
    (one) => (one.steps ? h("li.work", h("ol.steps-list")) : message(one, data.session.agent)),
    (node, one) => {
      if (one.steps) return drawSteps(node.firstChild, one.steps);
      say(node.when, UNHEARD[data.steers.get(one.id)?.mode] ?? "");
      const html = data.html.get(one.number);
      if (html != null && node.html !== html && !node.matches(".no-answer")) {
        node.html = html;
        node.text.className = "page-text";
        insertSanitised(node.text, html);
      }
      return undefined;
    });
  view.earlier.hidden = !messages.length || messages[0].number <= 1;
  view.talk.querySelector(".empty")?.remove();
  if (!messages.length && !data.queue.size && !data.running && !closed)
    view.talk.append(empty("Say something",
      "The agent answers here; while it works you can write on, messages wait in the queue."));
  const written = [...data.partials.values()].filter((one) => one.text);
  const quiet = data.running && data.running.wait !== "approval" &&
    !data.work.steps.some((one) => one.task === data.running.id);
  // steps tell themselves that it works, and would push it down
  const shown = written.length || !quiet ? written : [{ id: "thinking", text: "" }];
  keyed(view.partials, shown, (one) => one.id, (one) => {
    const text = h("div.said");
    const node = h("li.message.agent.writing",
      h("p.message-head", h("b", data.session.agent), h("span.faint", one.id === "thinking" ? "works" : "writes")),
      text);
    node.text = text;
    return node;
  }, (node, one) => grow(node.text, one.text));
}

/** Messages, and between them what was done, each run of steps as one. */
export function together(messages, steps) {
  const whole = !messages.length || messages[0].number <= 1;
  const shown = steps.filter((one) =>
    (one.kind !== "turn" || one.tools || usageText(one.usage)) && (whole || one.time >= messages[0].time));
  const found = [];
  let at = 0;
  const until = (time) => {
    const run = [];
    while (at < shown.length && (time === null || shown[at].time < time)) run.push(shown[at++]);
    if (run.length) found.push({ key: `work ${run[0].key}`, steps: run });
  };
  for (const one of messages) {
    until(one.time);
    found.push(one);
  }
  until(null);
  return found;
}

const NAMES = { result: "result", notice: "midwatch" };
// several people may speak here
const speaker = (one) => (one.author && one.author !== desk.me?.actor ? one.author : "you");
const FAILED = /^\[(failed|cancelled)(: \w+)?\]/; // how the record tells that there is no answer

const UNHEARD = {
  interrupt: "waits for the next step", after_tool: "waits for the tool", stop: "waits for the next step",
};

function message(one, agent) {
  const when = h("span.tag.unheard");
  const text = h("div.said", one.text);
  const node = h("li.message",
    { class: `${one.role}${one.role === "agent" && FAILED.test(one.text) ? " no-answer" : ""}` },
    h("p.message-head", h("b", one.role === "user" ? speaker(one) : NAMES[one.role] ?? agent),
      h("span.faint.num", { title: dateTime(one.time) }, timeOfDay(one.time)), when,
      one.task_id ? taskLink(one.task_id, "task") : null),
    text);
  node.text = text;
  node.when = when;
  return node;
}
