// The triggers and firings of an automation, and the fields of the form that add a webhook.

import { post } from "./api.js";
import { desk } from "./desk.js";
import { h, renderKeyed, setText } from "./dom.js";
import {
  createActionButton, createCommand, createEmpty, createField, createPageHead, createPanel, createTaskLink,
  showToast,
} from "./parts.js";
import { formatDateTime, formatMoment } from "./time.js";

const SIGNS = [
  ["", "none"], ["github", "GitHub"], ["gitlab", "GitLab"], ["standard", "Standard Webhooks"], ["hmac", "HMAC"],
];
const STARTS = {
  webhook: "on a delivery", file: "on changed files", git: "on a commit", after: "after other work",
  event: "on an event",
};
const KIND_NAMES = { webhook: "Webhook", file: "File", git: "Git", after: "After", event: "Event" };

/** Return an automation's kinds of triggers in a few words. */
export const formatTriggers = (automation) =>
  [...new Set((automation.triggers ?? []).map((trigger) => STARTS[trigger.kind] ?? trigger.kind))].join(", ");

/** Create the panels with the triggers and the firings of an automation. */
export function createTriggerPanels() {
  const list = h("ul.trigger-list"), rows = h("tbody");
  const table = h("div.scroll-x", h("table.plain.firings-table",
    h("thead", h("tr", ["Fired", "What", "Status", "", ""].map((name) => h("th", name)))), rows));
  const none = createEmpty("Not fired yet", "Each time a trigger fires, it is listed here.");
  const triggers = createPanel("Triggers", { name: "triggers", content: [list] });
  const firings = createPanel("Firings", { name: "firings" });
  firings.body.append(table, none);
  return { triggers: triggers.node, firings: firings.node, list, rows, table, none };
}

/** Show the triggers and firings. Without triggers the panels are hidden. */
export function drawTriggers(view, { triggers, firings }) {
  view.triggers.hidden = !triggers.length;
  view.firings.hidden = !triggers.length && !firings.length;
  renderKeyed(view.list, triggers, (trigger) => trigger.id, createTrigger, updateTrigger);
  renderKeyed(view.rows, firings, (firing) => firing.id, createFiring, updateFiring);
  view.table.hidden = !firings.length;
  view.none.hidden = firings.length > 0;
}

function createTrigger(trigger) {
  const parts = { options: h("code"), filtered: h("p.faint") };
  const secret = trigger.url && desk.may.act
    ? h("p.hint", "Its secret: ", createCommand(`midwatch automation secret ${trigger.id}`)) : null;
  return Object.assign(h("li.stack", h("p", h("b", KIND_NAMES[trigger.kind] ?? trigger.kind), " ", parts.options),
    trigger.url ? createCommand(trigger.url) : null, secret, parts.filtered), { parts });
}

function updateTrigger(node, trigger) {
  const { id, kind, ...options } = trigger.options;
  setText(node.parts.options, kind !== "webhook" ? trigger.text : Object.entries(options).map(([name, value]) =>
    `${name}: ${Array.isArray(value) ? value.join("; ") : typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(", "));
  node.parts.filtered.hidden = !trigger.filtered;
  if (trigger.filtered)
    setText(node.parts.filtered, `${trigger.filtered} filtered; the last at ${formatDateTime(trigger.filtered_at)}: ` +
      `${trigger.filtered_summary}, because not “${trigger.filtered_why}”`);
}

function createFiring(firing) {
  const parts = { status: h("td"), task: h("td") };
  const replay = desk.may.act
    ? createActionButton("Replay", async () => {
      await post(`/firings/${firing.id}/replay`);
      showToast("Fired again.");
    }, { title: "Fire again with the same payload" })
    : null;
  return Object.assign(h("tr",
    h("td.num", { title: formatDateTime(firing.created_at) }, formatMoment(firing.created_at)),
    h("td", { title: firing.key }, firing.summary), parts.status, parts.task, h("td.action", replay)), { parts });
}

function updateFiring(node, firing) {
  setText(node.parts.status, firing.reason ? `${firing.status}: ${firing.reason}` : firing.status);
  if (firing.task_id && !node.parts.task.firstChild)
    node.parts.task.append(createTaskLink(firing.task_id, "task") ?? "");
}

/** Create the fields of a form that add a webhook. */
export function createWebhookFields() {
  const sign = h("select", { name: "webhook" }, SIGNS.map(([value, text]) => h("option", { value }, text)));
  const filter = h("textarea.mono", {
    name: "filter", rows: 3, spellcheck: false, placeholder: "action = opened\nref ~ refs/heads/*",
  });
  const conditions = createField("Conditions", filter, "One in each line; all must hold. Empty means every delivery.");
  conditions.hidden = true;
  sign.addEventListener("change", () => { conditions.hidden = !sign.value; });
  return h("details", h("summary", "Webhook"),
    createField("Add a webhook, signed by", sign, "Also run when a delivery arrives at an address of its own."),
    conditions);
}

/** Take the fields of the webhook out of the values of the form. Return the trigger, or null if none is wanted. */
export function takeWebhook(values) {
  const { webhook, filter } = values;
  delete values.webhook;
  delete values.filter;
  const lines = (filter ?? "").split("\n").map((line) => line.trim()).filter(Boolean);
  return webhook ? { kind: "webhook", sign: webhook, ...(lines.length ? { filter: lines } : {}) } : null;
}

/** Show the addresses and secrets of new webhooks, with copy buttons. */
export function showWebhooks(main, automation) {
  main.replaceChildren(createPageHead("Webhook created"),
    ...automation.webhooks.map((webhook) => h("div.stack.new-webhook",
      h("p", "Enter this address and this secret where the deliveries are sent. The secret is not shown again here."),
      h("p", h("b", "Address "), createCommand(webhook.url)),
      h("p", h("b", "Secret "), createCommand(webhook.secret)))),
    h("p", h("a.button.primary", { href: `/automations/${automation.id}` }, "Open the automation")));
}
