// Steps of an agent's work as elements: the plan as a checklist, thoughts folded, tools with what they got and gave.

import { get, query } from "./api.js";
import { fileDiff } from "./diff.js";
import { firstLine, h, keyed, say } from "./dom.js";
import { usageText } from "./figures.js";
import { icon } from "./icons.js";
import { attribute, elapsed } from "./parts.js";
import { grow } from "./partial.js";
import { single } from "./place.js";
import { duration } from "./time.js";

const TOOL_ICONS = {
  read: "file", edit: "edit", delete: "bin", move: "move", search: "search", execute: "terminal", think: "thought",
  fetch: "globe",
};
const LONG = 100000; // characters of a result that are shown at once

/** The element of a step, and how to bring it up to date. */
export const makeStep = (step) => KINDS[step.kind].make(step);
export function updateStep(node, step) {
  if (node.version === step.version) return;
  node.version = step.version;
  KINDS[step.kind].update(node, step);
}

/** Keep `list` equal to the steps. */
export const drawSteps = (list, steps) => keyed(list, steps, (one) => one.key, makeStep, updateStep);

const folded = (name, ...head) => {
  const node = h(`details.step.${name}`, h("summary", ...head));
  return h("li", { class: `step-item` }, node);
};

const KINDS = {
  thought: {
    make() {
      const item = folded("thought", icon("thought", 14), h("b", "Thought"), h("span.cut.dim.step-line"));
      item.text = h("div.said");
      item.firstChild.append(item.text);
      return item;
    },
    update(item, { text, open }) {
      const details = item.firstChild;
      details.dataset.state = open ? "open" : "done";
      say(details.querySelector("b"), open ? "Thinks" : "Thought");
      const line = open ? text.trimEnd().split("\n").at(-1).slice(-200) : firstLine(text.trim());
      say(details.querySelector(".step-line"), line);
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
      const done = entries.filter((one) => one.status === "completed").length;
      say(item.count, `${done} of ${entries.length} done`);
      keyed(item.list, entries.map((one, at) => ({ ...one, at })), (one) => one.at,
        () => h("li", h("i.tick", { role: "img" }), h("span.said")),
        (node, one) => {
          const status = ["completed", "in_progress"].includes(one.status) ? one.status : "pending";
          node.dataset.status = status;
          node.firstChild.setAttribute("aria-label", status.replace("_", " "));
          say(node.lastChild, one.content);
          node.classList.toggle("urgent", one.priority === "high");
        });
    },
  },

  tool: {
    make(step) {
      const time = elapsed(null);
      const state = h("span.tool-state");
      const title = h("span.cut.step-line");
      const item = folded("tool", icon(TOOL_ICONS[step.toolKind] ?? "tool", 14), title, h("span.spacer"), state, time);
      item.append(h("div.diffs"));
      const details = item.firstChild;
      details.addEventListener("toggle", () => { if (details.open) fillTool(item); });
      item.parts = { title, state, time };
      return item;
    },
    update(item, step) {
      item.step = step;
      item.firstChild.dataset.state = step.open ? "open" : step.bad ? "bad" : "done";
      const named = step.title || step.tool || "a tool";
      say(item.parts.title, firstLine(named, 300)).title = step.title && step.tool ? `${step.tool}: ${named}` : named;
      say(item.parts.state, step.open ? "runs" : step.ended ? (step.bad ? "failed" : "") : "cut off");
      if (step.duration != null)
        item.parts.time.replaceWith((item.parts.time = h("span.num.took", duration(step.duration, { fine: true }))));
      else {
        attribute(item.parts.time, "from", step.started);
        attribute(item.parts.time, "to", step.ended ?? (step.open ? null : step.started));
      }
      if (item.firstChild.open) fillTool(item);
      const diffs = step.diffs ?? [];
      keyed(item.lastChild, diffs.map((one, at) => ({ ...one, at })), (one) => `${one.at} ${step.endSeq}`,
        (one) => fileDiff(one));
    },
  },

  question: {
    make: (step) => h("li.step-item", h("p.step.asked", { data: { status: step.status } }, icon("question", 14),
      h("span.said", step.command ? h("code", step.command) : step.question || "It asked"), h("span.answer-text"))),
    update(item, step) {
      const said = { granted: "allowed", denied: "denied", expired: "not answered in time" }[step.status] ??
        step.status;
      const by = step.by ? ` by ${step.by}` : "";
      say(item.querySelector(".answer-text"),
        `${step.answer && step.status !== "expired" ? `${step.answer}: ` : ""}${said}${by}` +
          `${step.why ? ` (${step.why})` : ""}`);
    },
  },

  error: {
    make: (step) => h("li.step-item", h("p.step.fault.said", step.text)),
    update() {},
  },

  turn: {
    make: () => h("li.step-item", h("p.step.turn.faint")),
    update(item, step) {
      const parts = [
        step.status === "completed" ? null : step.status,
        step.tools ? `${step.tools} ${step.tools === 1 ? "tool" : "tools"}` : null,
        step.duration == null ? null : duration(step.duration, { fine: true }), usageText(step.usage) || null,
      ];
      say(item.firstChild, parts.filter(Boolean).join(" · "));
    },
  },
};

/** What a tool got and gave, made when somebody looks. A result that the stream has cut is read whole. */
function fillTool(item) {
  const { step } = item;
  const details = item.firstChild;
  let body = details.querySelector(".tool-body");
  if (body?.version === step.version) return;
  body?.remove();
  body = Object.assign(h("div.tool-body"), { version: step.version });
  if (step.title && step.tool && step.title !== step.tool) body.append(fact("Tool", h("code", step.tool)));
  if (step.locations?.length) body.append(fact("Files", h("code.said", step.locations.join("\n"))));
  const given = argumentText(step.arguments);
  if (given) body.append(fact("Arguments", h("pre.block", { tabindex: "0" }, given)));
  if (step.result != null && step.result !== "") {
    const shown = h("pre.block", { tabindex: "0" }, step.result.slice(0, LONG));
    const more = step.result.length > LONG ? `${step.result.length - LONG} more characters are not shown` : null;
    body.append(fact(step.bad ? "Error" : "Result", shown, more ? h("p.faint", more) : null));
    if (step.cut) whole(step, shown);
  } else if (!step.open)
    body.append(fact(step.bad ? "Error" : "Result",
      h("span.faint", step.ended ? "it returned no text" : "it was cut off before it returned")));
  details.append(body);
}

const fact = (name, ...what) => h("div.tool-fact", h("p.faint", name), what);

function argumentText(value) {
  if (value === null || value === undefined || value === "") return "";
  if (typeof value === "string") return value;
  const names = Object.keys(value);
  if (!names.length) return "";
  if (names.length === 1 && typeof value[names[0]] === "string") return value[names[0]];
  return JSON.stringify(value, null, 2);
}

async function whole(step, shown) {
  const { events } = await get(`/events${query({ after: step.endSeq - 1, limit: 1, session_key: single })}`)
    .catch(() => ({ events: [] }));
  const result = events[0]?.seq === step.endSeq ? events[0].payload.result : null;
  if (result == null) return;
  Object.assign(step, { result, cut: null });
  say(shown, result.slice(0, LONG));
}
