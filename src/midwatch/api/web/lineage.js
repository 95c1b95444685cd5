// The rows of related tasks and of notices on the page of a task.

import { post } from "./api.js";
import { desk } from "./desk.js";
import { getFirstLine, h, setText } from "./dom.js";
import { createActionButton, createStatus, showToast } from "./parts.js";
import { formatChannel } from "./model.js";
import { describeWork } from "./handoff-parts.js";
import { formatDateTime } from "./time.js";

/** Return the related tasks. A task from a handoff shows its work, because its prompt may start with the history. */
export function addHandoffWork({ lineage, handoffs }) {
  const works = new Map(handoffs.map((handoff) => [handoff.task_id, describeWork(handoff)]));
  return lineage.map((relative) => ({ ...relative, prompt: works.get(relative.id) ?? relative.prompt }));
}

const RELATIONS = {
  root: "root", parent: "parent", retry_of: "retry of", retry: "retried as", child: "child",
  other: "same root",
};

export function createRelative(relative) {
  return h("li",
    h("a.row.relative", { href: `/tasks/${relative.id}` },
      h("span.faint", RELATIONS[relative.relation] ?? relative.relation),
      h("span.truncate", h("b", relative.agent), " ", getFirstLine(relative.prompt)), createStatus(relative)));
}

/** Return the name of a notice for people: without the ids after its first part. */
function formatNoticeName(notice) {
  const [name] = notice.split(":");
  return { asked: "question", budget: "budget warning" }[name] ?? name.replaceAll("_", " ");
}

export function createNotice(delivery) {
  const resend = createActionButton("Send again",
    () => post(`/deliveries/${delivery.id}/retry`).then(() => showToast("The notice will be sent again.")),
    { kind: "small action" });
  return h("li",
    h("div.row.notice", h("span.status"),
      h("span.truncate", `${formatNoticeName(delivery.notice)} → ${formatChannel(delivery.channel)}`),
      h("span.dim.truncate.why"), resend));
}

export function updateNotice(node, delivery) {
  const status = node.querySelector(".status");
  status.dataset.status = delivery.status;
  setText(status, delivery.status);
  const waits = delivery.status === "pending" && delivery.policy?.startsWith("digest:") && !delivery.attempts &&
    Date.parse(delivery.due_at) > Date.now();
  const why = delivery.error ?? (waits ? `in the digest of ${formatDateTime(delivery.due_at)}` : "");
  const policy = delivery.policy ? ` (notices: ${delivery.policy})` : "";
  setText(node.querySelector(".why"), why).title = `${why}${policy}`.trim();
  node.querySelector("button").hidden = delivery.status !== "failed" || !desk.may.act;
}

