// The steps of an agent's work as elements: plans, thoughts, tools with arguments and results, questions, turns.

import { buildQuery, get } from "./api.js";
import { createFileDiff } from "./diff.js";
import { getFirstLine, h, renderKeyed, setText } from "./dom.js";
import { formatUsage } from "./figures.js";
import { icon } from "./icons.js";
import { ANSWER_TEXTS } from "./model.js";
import { createElapsed, createTaskLink, setAttribute } from "./parts.js";
import { grow } from "./partial.js";
import { singleSession } from "./place.js";
import { formatDuration } from "./time.js";

const TOOL_ICONS = {
  read: "file", edit: "edit", delete: "bin", move: "move", search: "search", execute: "terminal", think: "thought",
  fetch: "globe",
};
const MAX_RESULT = 100000; // characters of a result that are shown

/** Create the element of a step; `updateStep` updates it. */
const createStep = (step) => KINDS[step.kind].make(step);
function updateStep(node, step) {
  if (node.version === step.version) return;
  node.version = step.version;
  KINDS[step.kind].update(node, step);
}

/** Show the steps in `list`. */
export const drawSteps = (list, steps) => renderKeyed(list, steps, (step) => step.key, createStep, updateStep);

const createFolded = (name, ...head) => {
  const node = h(`details.step.${name}`, h("summary", ...head));
  return h("li", { class: `step-item` }, node);
};

const KINDS = {
  thought: {
    make() {
      const item = createFolded("thought", icon("thought", 14), h("b", "Thought"), h("span.truncate.dim.step-line"));
      item.text = h("div.plain-text");
      item.firstChild.append(item.text);
      return item;
    },
    update(item, { text, open }) {
      const details = item.firstChild;
      details.dataset.state = open ? "open" : "done";
      setText(details.querySelector("b"), open ? "Thinking" : "Thought");
      const line = open ? text.trimEnd().split("\n").at(-1).slice(-200) : getFirstLine(text.trim());
      setText(details.querySelector(".step-line"), line);
      grow(item.text, text);
    },
  },

  plan: {
    make() {
      const count = h("span.faint.num");
      const list = h("ol.plan-list");
      return Object.assign(
        h("li.step-item",
          h("section.step.plan", { "aria-label": "Plan" }, h("p.plan-head", icon("tasks", 14), h("b", "Plan"), count),
            list)),
        { count, list });
    },
    update(item, { entries }) {
      const done = entries.filter((entry) => entry.status === "completed").length;
      setText(item.count, `${done} of ${entries.length} done`);
      renderKeyed(item.list, entries.map((entry, at) => ({ ...entry, at })), (entry) => entry.at,
        () => h("li", h("i.tick", { role: "img" }), h("span.plain-text")),
        (node, entry) => {
          const status = ["completed", "in_progress"].includes(entry.status) ? entry.status : "pending";
          node.dataset.status = status;
          node.firstChild.setAttribute("aria-label", status.replace("_", " "));
          setText(node.lastChild, entry.content);
          node.classList.toggle("urgent", entry.priority === "high");
        });
    },
  },

  tool: {
    make(step) {
      const time = createElapsed(null);
      const state = h("span.tool-state");
      const title = h("span.truncate.step-line");
      const item = createFolded("tool", icon(TOOL_ICONS[step.toolKind] ?? "tool", 14), title, h("span.spacer"), state,
        time);
      item.append(h("div.diffs"));
      const details = item.firstChild;
      details.addEventListener("toggle", () => { if (details.open) fillTool(item); });
      item.parts = { title, state, time };
      return item;
    },
    update(item, step) {
      item.step = step;
      item.firstChild.dataset.state = step.open ? "open" : step.bad ? "bad" : "done";
      const label = step.title || step.tool || "tool";
      setText(item.parts.title, getFirstLine(label, 300)).title = step.title &&
        step.tool ? `${step.tool}: ${label}` : label;
      const end = step.skipped ? "skipped" : step.bad ? "failed" : "";
      setText(item.parts.state, step.open ? "running" : step.ended ? end : "interrupted");
      item.parts.time.hidden = Boolean(step.skipped);
      if (step.duration != null)
        item.parts.time.replaceWith((item.parts.time =
          h("span.num.duration", formatDuration(step.duration, { fine: true }))));
      else {
        setAttribute(item.parts.time, "from", step.started);
        setAttribute(item.parts.time, "to", step.ended ?? (step.open ? null : step.started));
      }
      if (item.firstChild.open) fillTool(item);
      const diffs = step.diffs ?? [];
      renderKeyed(item.lastChild, diffs.map((diff, at) => ({ ...diff, at })), (diff) => `${diff.at} ${step.endSeq}`,
        (diff) => createFileDiff(diff));
    },
  },

  question: {
    make: (step) => h("li.step-item", h("p.step.question-step", { data: { status: step.status } }, icon("question", 14),
      h("span.plain-text", step.command ? h("code", step.command) : step.question || "Question"),
      h("span.answer-text"))),
    update(item, step) {
      const result = ANSWER_TEXTS[step.status] ?? step.status;
      const by = step.by ? ` by ${step.by}` : "";
      setText(item.querySelector(".answer-text"),
        `${step.answer && step.status !== "expired" ? `${step.answer}: ` : ""}${result}${by}` +
          `${step.why ? ` (${step.why})` : ""}`);
    },
  },

  results: {
    make: ({ tasks, outcomes }) => h("li.step-item", h("p.step.results.faint", "Got results of background work: ",
      ...tasks.flatMap((id, at) => [at ? ", " : "", createTaskLink(id, id) ?? id, ` (${outcomes[at] ?? "?"})`]))),
    update() {},
  },

  error: {
    make: (step) => h("li.step-item", h("p.step.error-step.plain-text", step.text)),
    update() {},
  },

  turn: {
    make: () => h("li.step-item", h("p.step.turn.faint")),
    update(item, step) {
      const parts = [
        step.status === "completed" ? null : step.status,
        step.tools ? `${step.tools} ${step.tools === 1 ? "tool" : "tools"}` : null,
        step.duration == null ? null : formatDuration(step.duration, { fine: true }), formatUsage(step.usage) || null,
      ];
      setText(item.firstChild, parts.filter(Boolean).join(" · "));
    },
  },
};

/** Fill in the arguments and result of a tool when it is opened. A result that the stream has cut is loaded whole. */
function fillTool(item) {
  const { step } = item;
  const details = item.firstChild;
  let body = details.querySelector(".tool-body");
  if (body?.version === step.version) return;
  body?.remove();
  body = Object.assign(h("div.tool-body"), { version: step.version });
  if (step.title && step.tool && step.title !== step.tool) body.append(createFact("Tool", h("code", step.tool)));
  if (step.locations?.length) body.append(createFact("Files", h("code.plain-text", step.locations.join("\n"))));
  const argumentsText = formatArguments(step.arguments);
  if (argumentsText) body.append(createFact("Arguments", h("pre.block", { tabindex: "0" }, argumentsText)));
  if (step.result != null && step.result !== "") {
    const block = h("pre.block", { tabindex: "0" }, step.result.slice(0, MAX_RESULT));
    const more = step.result.length > MAX_RESULT ? `${step.result.length - MAX_RESULT} more characters are not shown`
      : null;
    const name = step.skipped ? "Reason" : step.bad ? "Error" : "Result";
    body.append(createFact(name, block, more ? h("p.faint", more) : null));
    if (step.cut) loadFullResult(step, block);
  } else if (!step.open)
    body.append(createFact(step.bad ? "Error" : "Result",
      h("span.faint", step.ended ? "No text returned" : "Interrupted before it returned")));
  details.append(body);
}

const createFact = (name, ...what) => h("div.tool-fact", h("p.faint", name), what);

function formatArguments(value) {
  if (value === null || value === undefined || value === "") return "";
  if (typeof value === "string") return value;
  const names = Object.keys(value);
  if (!names.length) return "";
  if (names.length === 1 && typeof value[names[0]] === "string") return value[names[0]];
  return JSON.stringify(value, null, 2);
}

async function loadFullResult(step, block) {
  const { events } = await get(`/events${buildQuery({ after: step.endSeq - 1, limit: 1, session_key: singleSession })}`)
    .catch(() => ({ events: [] }));
  const result = events[0]?.seq === step.endSeq ? events[0].payload.result : null;
  if (result == null) return;
  Object.assign(step, { result, cut: null });
  setText(block, result.slice(0, MAX_RESULT));
}
