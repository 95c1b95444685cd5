// Rules: what they would decide on the use of a tool, the rules of the settings, and the rules of answers.

import { del, get, post } from "../api.js";
import { h, renderKeyed } from "../dom.js";
import {
  confirmAction, createActionButton, createAgo, createEmpty, createField, createFormButtons, createPageHead,
  createPanel, handleSubmit, pickFilled, showToast, submitWithKey,
} from "../parts.js";
import { createAgentPicker } from "../picker.js";
import { createReader } from "../reader.js";
import { stream } from "../stream.js";

const STATUSES = { allow: "done", ask: "asking", deny: "failed" };
const EFFECTS = { allow: "allowed", ask: "asked", deny: "denied" };
const FIELDS = ["agent", "tool", "kind", "path", "command", "host", "workdir", "task", "session"];
const KINDS = ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"];

export default async function renderRules(main, page) {
  page.setTitle("Rules");
  const written = createPanel("Settings", { name: "rules-written" });
  const answers = createPanel("Made by answers", { name: "rules-answers" });
  main.append(createPageHead("Rules"),
    h("div.rules-grid", h("div.stack", written.node, answers.node), createTest(page)));
  const read = createReader(written.body, page, () => get("/rules"), (reply) => {
    drawList(written.body, "Rules of the settings", reply.written, createWrittenRow,
      "Write rules in midwatch.toml: in [approvals] for all agents, in [agents.NAME.approvals] for one.");
    drawList(answers.body, "Rules made by answers", reply.rules, (rule) => createRuleRow(rule, read),
      "An answer such as “always allow …” makes a rule. It is listed here, and you can revoke it.");
  });
  page.onLeave(stream.on({
    event: ({ kind }) => { if (kind === "rule_added" || kind === "rule_revoked") read(); },
    reset: read,
  }));
  read();
}

function drawList(body, label, rules, createRow, hint) {
  if (!rules.length) return body.replaceChildren(createEmpty("No rules", hint));
  if (!body.list?.isConnected) body.replaceChildren((body.list = h("ol.rows", { "aria-label": label })));
  const numbered = rules.map((rule, at) => ({ key: rule.id ?? `${at} ${rule.text}`, ...rule }));
  return renderKeyed(body.list, numbered, (rule) => rule.key, createRow);
}

function createWrittenRow(rule) {
  return h("li", h("div.row.rule-row",
    createEffect(rule.effect), createText(rule.effect, rule.text),
    h("span.tag", rule.of ? `agent ${rule.of}` : rule.source)));
}

function createRuleRow(rule, again) {
  const revoke = createActionButton("Revoke", async () => {
    if (!(await confirmAction(`Revoke “${rule.text}”? Agents will ask about this again.`, "Revoke"))) return;
    await del(`/rules/${rule.id}`);
    showToast("Rule revoked.");
    again();
  }, { kind: "danger small action" });
  return h("li", h("div.row.rule-row",
    createEffect(rule.effect), h("span.rule-text.plain-text", rule.text), revoke,
    h("span.row-sub.faint", rule.created_by ? `by ${rule.created_by} ` : "", createAgo(rule.created_at))));
}

/** Show what a rule is about; its effect is shown beside it. */
const createText = (effect, text) =>
  h("span.rule-text.plain-text", text.startsWith(`${effect} `) ? text.slice(effect.length + 1) : text);

const createEffect = (effect) => h("span.status", { data: { status: STATUSES[effect] } }, effect);

/** Create the form that tests rules, with a place for the result. */
function createTest(page) {
  const text = (name, placeholder) =>
    h("input", { name, placeholder, autocomplete: "off", value: page.search.get(name) ?? "" });
  const kind = h("select", { name: "kind" },
    h("option", { value: "" }, "guess"), KINDS.map((name) => h("option", name)));
  const button = h("button.primary", { type: "submit" }, "Test");
  const result = h("div.rule-result", { "aria-live": "polite" });
  const form = h("form.form", { noValidate: true },
    h("div.form-row", createField("Agent", createAgentPicker(page.search.get("agent") ?? "")),
      createField("Tool", text("tool", "write_file or github/push")), createField("Kind", kind)),
    h("div.form-row", createField("Path", text("path", "src/x")),
      createField("Command", text("command", "git push")), createField("Host", text("host", "example.org"))),
    h("details", h("summary", "Rules of work"),
      h("div.form-row.more-fields",
        createField("Task", text("task", "none"), "The rules of this task and of its session apply, too."),
        createField("Session", text("session", "none"), "The rules of this session apply, too."),
        createField("Directory", text("workdir", "that of the task"), "Relative paths begin here."))),
    createFormButtons(button));
  handleSubmit(form, button, async (values) => {
    const trial = await post("/rules/test", pickFilled(values, FIELDS));
    if (page.isCurrent()) drawResult(result, trial);
  });
  submitWithKey(form);
  const panel = createPanel("Test", { name: "rules-test", content: [
    h("p.hint", "What would happen if an agent used a tool? Nothing is run, and nobody is asked."), form, result,
  ] });
  return panel.node;
}

function drawResult(place, trial) {
  const effect = h("span.status", { data: { status: STATUSES[trial.effect] ?? "idle" } },
    EFFECTS[trial.effect] ?? "the tool decides");
  const levels = trial.levels.map((level) => h("li", h("div.row.rule-row",
    createEffect(level.effect), createText(level.effect, level.rule),
    h("span.row-sub.faint.truncate", [level.source, level.name].filter(Boolean).join(" ")))));
  place.replaceChildren(h("p.rule-effect", effect, " ", trial.text),
    levels.length > 1 ? h("ol.rows", { "aria-label": "Levels" }, levels) : "");
}
