// The kin of a task, and the notices about it, as rows.

import { post } from "./api.js";
import { desk } from "./desk.js";
import { firstLine, h, say } from "./dom.js";
import { actButton, statusMark, toast } from "./parts.js";
import { whatOf } from "./handoff-parts.js";

/** Its kin; of what was handed over the work, as the prompt may begin with all that was said before. */
export function withWork({ lineage, handoffs }) {
  const works = new Map(handoffs.map((one) => [one.task_id, whatOf(one)]));
  return lineage.map((one) => ({ ...one, prompt: works.get(one.id) ?? one.prompt }));
}

const RELATIONS = {
  root: "root", parent: "parent", retry_of: "retry of", retry: "retried as", child: "child",
  other: "of the same root",
};

export function relative(one) {
  return h("li",
    h("a.row.relative", { href: `/tasks/${one.id}` }, h("span.faint", RELATIONS[one.relation] ?? one.relation),
      h("span.cut", h("b", one.agent), " ", firstLine(one.prompt)), statusMark(one)));
}

export function notice(one) {
  const again = actButton("Send again",
    () => post(`/deliveries/${one.id}/retry`).then(() => toast("It will be sent again.")), { kind: "small acts" });
  return h("li",
    h("div.row.notice", h("span.status"), h("span.cut", `${one.notice} → ${one.channel}`), h("span.dim.cut.why"),
      again));
}

export function updateNotice(node, one) {
  const mark = node.querySelector(".status");
  mark.dataset.status = one.status;
  say(mark, one.status);
  say(node.querySelector(".why"), one.error ?? "").title = one.error ?? "";
  node.querySelector("button").hidden = one.status !== "failed" || !desk.may.act;
}

