// Settings: who is signed in, tokens, and the configuration of the server.

import { del, get, post, trackRequests } from "../api.js";
import { desk } from "../desk.js";
import { h, renderKeyed } from "../dom.js";
import {
  confirmAction, createActionButton, createAgo, createCopyButton, createEmpty, createFailure, createField,
  createPageHead, createPanel, createSkeleton, handleSubmit, pickFilled, showToast,
} from "../parts.js";
import { stream } from "../stream.js";
import { formatDateTime, formatPeriod } from "../time.js";
import { formatChannel } from "../model.js";

export default async function renderSettings(main, page) {
  page.setTitle("Settings");
  const who = createPanel("Signed in as", {
    name: "who-am-i",
    actions: [
      createActionButton("Sign out", async () => {
        await post("/sign-out");
        stream.signOut();
        location.replace("/sign-in");
      }, { iconName: "out", kind: "quiet" }),
    ],
  });
  const limits = createPanel("Limits");
  const store = createPanel("Storage");
  const channels = createPanel("Channels");
  const hooks = createHookPanel();
  for (const panel of [who, limits, store,
    channels]) { panel.body.classList.add("padded"); panel.body.append(createSkeleton(3)); }
  const tokens = createTokenPanel();
  main.append(createPageHead("Settings"),
    h("div.settings-grid", h("div.stack", who.node, limits.node),
      h("div.stack", tokens.node, store.node, channels.node, hooks.node)));
  const me = desk.me ?? (await get("/me"));
  desk.me = me;
  who.body.replaceChildren(createFacts({ Actor: me.actor, Role: me.role, Version: me.version, Home: me.home }));
  tokens.read(me.role === "owner");
  hooks.read();
  try {
    const reply = await get("/settings");
    if (!page.isCurrent()) return;
    limits.body.replaceChildren(createFacts({
      "default agent": reply.default_agent, ...reply.limits, ...addPrefix("keep", reply.retention),
    }));
    store.body.replaceChildren(createFacts(reply.store));
    channels.body.replaceChildren(
      h("p", reply.channels.map((name) => h("span.tag", name)), reply.channels.length ? "" : "none"),
      h("p.hint",
        reply.notify
          ? `Default notification channel: ${formatChannel(reply.notify)}.`
          : "No default notification channel. Set one with the setting notify, or one for each task."));
  } catch (problem) {
    for (const panel of [limits, store, channels]) panel.body.replaceChildren(createFailure(problem));
  }
}

function createHookPanel() {
  const { node, body } = createPanel("Hooks", { name: "hooks" });
  const read = async () => {
    try {
      const { hooks } = await get("/hooks");
      if (!hooks.length)
        return body.replaceChildren(h("p.faint.padded", "No hooks. Add them with the setting hooks."));
      return body.replaceChildren(h("ol.hook-list", hooks.map(createHookItem)));
    } catch (problem) {
      return body.replaceChildren(createFailure(problem, read));
    }
  };
  body.append(createSkeleton(2));
  return { node, read };
}

const HOOK_COUNTS = {
  calls: "call", events: "event", failures: "failure", dropped: "dropped event", restarts: "restart",
};

function createHookItem(hook) {
  const always = hook.seams.every((seam) => seam === "observe") ? "events" : "calls";
  const counts = Object.entries(HOOK_COUNTS).filter(([name]) => name === always || hook[name])
    .map(([name, noun]) => `${hook[name]} ${noun}${hook[name] === 1 ? "" : "s"}`);
  return h("li",
    h("p.hook-head", h("strong", hook.name), h("span.tag", hook.state), h("span.faint", hook.kind)),
    h("p.hint", `${hook.seams.join(", ")} · ${counts.join(", ")}`),
    hook.last_error && h("p.bad-text", createAgo(hook.last_error_at), ": ", hook.last_error));
}

const addPrefix = (word, values) =>
  Object.fromEntries(Object.entries(values ?? {}).map(([name, value]) => [`${word} ${name}`, value]));

function createFacts(values) {
  return h("dl.facts", Object.entries(values ?? {}).filter(([, value]) => value !== undefined).map(([name, value]) =>
    h("div.fact", h("dt", name.replaceAll("_", " ")), h("dd.num", formatValue(name, value)))));
}

const TIMES = /age$|expiry$|timeout$|seconds$/;
const formatSize = (bytes) => (bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB`
  : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB`
  : `${(bytes / 1e9).toFixed(2)} GB`);

function formatValue(name, value) {
  if (value === null) return h("span.faint", "none");
  if (typeof value === "object") return h("code", JSON.stringify(value));
  if (typeof value === "number" && TIMES.test(name)) return formatPeriod(value);
  if (typeof value === "number" && name === "bytes") return formatSize(value);
  if (typeof value === "number" && value >= 10000) return value.toLocaleString();
  return typeof value === "boolean" ? (value ? "yes" : "no") : String(value);
}

function createTokenPanel() {
  const { node, body } = createPanel("Tokens", { name: "tokens" });
  const newToken = h("div.new-token", { hidden: true });
  const rows = h("tbody");
  const table = h("div.scroll-x",
    h("table.plain.token-table",
      h("thead", h("tr", ["Name", "Actor", "Role", "Last used", "Created", ""].map((name) => h("th", name)))), rows));
  const form = createTokenForm((token) => {
    newToken.hidden = false;
    newToken.replaceChildren(h("p", h("b", token.name), ": copy the token now. It is not shown again."),
      h("span.command", h("code", token.secret), createCopyButton(token.secret, "Copy the token")));
    read(true);
  });
  const none = h("p.faint.padded", { hidden: true }, "No tokens yet. Create one for each program, phone or colleague.");
  const showAll = h("label.check", h("input", { type: "checkbox", onchange: () => read(true) }),
    " Show revoked tokens and browsers");
  const startRequest = trackRequests();
  const read = async (owner) => {
    const { accept } = startRequest();
    if (!owner)
      return body.replaceChildren(createEmpty("Only the owner can see tokens",
        "Ask the owner for a token with the role you need."));
    try {
      const { tokens } = await get("/tokens");
      if (!accept()) return undefined;
      const listed = tokens.filter((token) => showAll.firstChild.checked ||
        (token.kind === "api" && !token.revoked_at));
      if (!form.isConnected) body.replaceChildren(form, newToken, table, none, h("div.padded", showAll));
      renderKeyed(rows, listed, (token) => token.id + Boolean(token.revoked_at),
        (token) => createTokenRow(token, () => read(true)));
      none.hidden = listed.length > 0;
      return undefined;
    } catch (problem) {
      if (form.isConnected) return showToast(problem.message,
        "bad"); // keep what was typed and a token that is shown once
      return body.replaceChildren(createFailure(problem, () => read(true)));
    }
  };
  body.append(createSkeleton(3));
  return { node, read };
}

function createTokenForm(done) {
  const button = h("button.primary", { type: "submit" }, "Create");
  const form = h("form.token-form.padded", { noValidate: true },
    createField("Name", h("input", { name: "name", placeholder: "e.g. phone", autocomplete: "off",
      maxLength: 100 })),
    createField("Role", h("select", { name: "role" },
      ["operator", "viewer", "owner"].map((name) => h("option", name)))),
    createField("Actor", h("input", { name: "actor", placeholder: "same as the name", autocomplete: "off",
      maxLength: 100 })),
    button);
  handleSubmit(form, button, async (values) => {
    const body = { name: "", ...pickFilled(values, ["name", "role", "actor"]) };
    const token = await post("/tokens", body).catch((problem) => {
      if (problem.status === 409) problem.field = "name";
      throw problem;
    });
    form.reset();
    for (const error of form.querySelectorAll(".field-error")) error.hidden = true;
    done(token);
  });
  return form;
}

function createTokenRow(token, onChange) {
  const revoke = createActionButton("Revoke", async () => {
    if (!(await confirmAction(`Revoke ${token.name}? It stops working immediately.`, "Revoke"))) return;
    await del(`/tokens/${encodeURIComponent(token.id)}`);
    showToast(`Token ${token.name} revoked.`);
    onChange();
  }, { kind: "danger small" });
  return h("tr", { class: token.revoked_at ? "faint" : "" },
    h("td", token.name, token.kind === "browser" ? h("span.tag", "browser") : null), h("td", token.actor),
    h("td", token.role),
    h("td", token.last_used_at ? createAgo(token.last_used_at) : "never"),
    h("td", { title: formatDateTime(token.created_at) }, createAgo(token.created_at)),
    h("td", token.revoked_at ? "revoked" : revoke));
}
