// The output of a task: the text that has arrived so far, the result, or the error.

import { h, insertSanitised, setText } from "./dom.js";
import { isOpen } from "./model.js";
import { grow } from "./partial.js";

/** Draw the output, and the title of its panel. Leave unchanged parts alone. */
export function drawOutput(output, title, { task, partial, result_html: html }) {
  const kind = isOpen(task) ? "partial" : task.status === "done" ? "result" : "error";
  setText(title,
    { partial: "Output", result: "Result", error: task.status === "failed" ? "Error" : "Cancelled" }[kind]);
  if (kind === "partial") {
    if (output.dataset.kind !== "partial")
      output.replaceChildren(h("p.faint.none"), h("div.plain-text", { "aria-live": "off" }));
    const [none, text] = output.children;
    none.hidden = Boolean(partial);
    setText(none, task.status === "running" || task.started_at ? "No output yet." : "Not started yet.");
    grow(text, partial ?? "");
  } else if (kind === "result") {
    if (output.content === (html ?? task.result)) return;
    output.content = html ?? task.result;
    if (html) output.replaceChildren(insertSanitised(h("div.page-text"), html));
    else output.replaceChildren(task.result ? h("div.plain-text", task.result)
      : h("p.faint", ...describeEnd(task)));
  } else if (output.content !== `error ${task.error}`) {
    const kept = task.result || partial;
    output.content = `error ${task.error}`;
    output.replaceChildren(
      h("div.plain-text", { class: task.status === "failed" ? "problem" : "faint" },
        task.error || (task.status === "failed" ? `Failed: ${task.outcome}.` : "Cancelled.")),
      kept ? h("details", h("summary", "Partial output"), h("div.plain-text", kept)) : "");
  }
  output.dataset.kind = kind;
}

/** Describe the end of a task that is done and has no text. */
function describeEnd({ outcome, transferred_to: next }) {
  if (next) return ["The session moved to another agent: ", h("a", { href: `/tasks/${next}` }, "view its task"), "."];
  return [outcome === "silent" ? "The agent had nothing to report (silent)." : "The task ended without a text."];
}
