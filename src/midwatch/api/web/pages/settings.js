// Settings: who I am, who else may come in, and how this desk is set up.

import { asking, del, get, post } from "../api.js";
import { desk } from "../desk.js";
import { h, keyed } from "../dom.js";
import {
  act, actButton, agoOf, confirmed, copyButton, empty, failure, field, pageHead, panel, showProblem, skeleton,
  toast,
} from "../parts.js";
import { stream } from "../stream.js";
import { dateTime, length } from "../time.js";

export default async function settings(main, page) {
  page.setTitle("Settings");
  const who = panel("Who am I", {
    name: "who-am-i",
    actions: [
      actButton("Sign out", async () => {
        await post("/sign-out");
        stream.signOut();
        location.replace("/sign-in");
      }, { iconName: "out", kind: "quiet" }),
    ],
  });
  const limits = panel("Limits");
  const store = panel("Store");
  const channels = panel("Channels");
  for (const one of [who, limits, store, channels]) { one.body.classList.add("padded"); one.body.append(skeleton(3)); }
  const tokens = tokenPanel();
  main.append(pageHead("Settings"),
    h("div.settings-grid", h("div.stack", who.node, limits.node),
      h("div.stack", tokens.node, store.node, channels.node)));
  const me = desk.me ?? (await get("/me"));
  desk.me = me;
  who.body.replaceChildren(facts({ Actor: me.actor, Role: me.role, Version: me.version, Home: me.home }));
  tokens.read(me.role === "owner");
  try {
    const found = await get("/settings");
    if (!page.isShown()) return;
    limits.body.replaceChildren(facts({
      "default agent": found.default_agent, ...found.limits, ...prefixed("keep", found.retention),
    }));
    store.body.replaceChildren(facts(found.store));
    channels.body.replaceChildren(
      h("p", found.channels.map((name) => h("span.tag", name)), found.channels.length ? "" : "none"),
      h("p.hint",
        found.notify
          ? `Told of everything: ${[found.notify].flat().join(", ")}.`
          : "A task's route says which channel hears of it; the setting notify is for all tasks."));
  } catch (problem) {
    for (const one of [limits, store, channels]) one.body.replaceChildren(failure(problem));
  }
}

const prefixed = (word, values) =>
  Object.fromEntries(Object.entries(values ?? {}).map(([name, value]) => [`${word} ${name}`, value]));

function facts(values) {
  return h("dl.facts", Object.entries(values ?? {}).filter(([, value]) => value !== undefined).map(([name, value]) =>
    h("div.fact", h("dt", name.replaceAll("_", " ")), h("dd.num", shown(name, value)))));
}

const TIMES = /age$|expiry$|timeout$|seconds$/;
const size = (bytes) => (bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB`
  : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB`
  : `${(bytes / 1e9).toFixed(2)} GB`);

function shown(name, value) {
  if (value === null) return h("span.faint", "none");
  if (typeof value === "object") return h("code", JSON.stringify(value));
  if (typeof value === "number" && TIMES.test(name)) return length(value);
  if (typeof value === "number" && name === "bytes") return size(value);
  if (typeof value === "number" && value >= 10000) return value.toLocaleString();
  return typeof value === "boolean" ? (value ? "yes" : "no") : String(value);
}

function tokenPanel() {
  const { node, body } = panel("Tokens", { name: "tokens" });
  const made = h("div.made", { hidden: true });
  const rows = h("tbody");
  const table = h("div.scroll-x",
    h("table.plain.token-table",
      h("thead", h("tr", ["Name", "Actor", "Role", "Used", "Made", ""].map((name) => h("th", name)))), rows));
  const form = tokenForm((token) => {
    made.hidden = false;
    made.replaceChildren(h("p", h("b", token.name), ": copy it now, it is not shown again."),
      h("span.command", h("code", token.secret), copyButton(token.secret, "Copy the token")));
    read(true);
  });
  const none = h("p.faint.padded", { hidden: true }, "No tokens yet: programs, phones and colleagues get one each.");
  const old = h("label.check", h("input", { type: "checkbox", onchange: () => read(true) }),
    " also revoked and browsers");
  const ask = asking();
  const read = async (owner) => {
    const { isNext } = ask();
    if (!owner)
      return body.replaceChildren(empty("Only the owner sees tokens",
        "Ask the owner for one of your own, with the role you need."));
    try {
      const { tokens } = await get("/tokens");
      if (!isNext()) return undefined;
      const wanted = tokens.filter((one) => old.firstChild.checked || (one.kind === "api" && !one.revoked_at));
      if (!form.isConnected) body.replaceChildren(form, made, table, none, h("div.padded", old));
      keyed(rows, wanted, (one) => one.id + Boolean(one.revoked_at), (one) => tokenRow(one, () => read(true)));
      none.hidden = wanted.length > 0;
      return undefined;
    } catch (problem) {
      if (form.isConnected) return toast(problem.message, "bad"); // what is typed, and a token that is shown once, stay
      return body.replaceChildren(failure(problem, () => read(true)));
    }
  };
  body.append(skeleton(3));
  return { node, read };
}

function tokenForm(done) {
  const button = h("button.primary", { type: "submit" }, "Create");
  const form = h("form.token-form.padded", { noValidate: true },
    field("Name", h("input", { name: "name", placeholder: "such as phone", autocomplete: "off", maxLength: 100 })),
    field("Role", h("select", { name: "role" }, ["operator", "viewer", "owner"].map((name) => h("option", name)))),
    field("Actor", h("input", { name: "actor", placeholder: "same as the name", autocomplete: "off", maxLength: 100 })),
    button);
  form.addEventListener("submit", (sent) => {
    sent.preventDefault();
    act(button, async () => {
      const said = Object.fromEntries(new FormData(form));
      try {
        const token = await post("/tokens",
          { name: said.name.trim(), role: said.role, ...(said.actor.trim() ? { actor: said.actor.trim() } : {}) });
        form.reset();
        for (const one of form.querySelectorAll(".field-error")) one.hidden = true;
        done(token);
      } catch (problem) {
        showProblem(form, problem.status === 409 ? { field: "name", message: problem.message } : problem);
      }
    });
  });
  return form;
}

function tokenRow(one, changed) {
  const revoke = actButton("Revoke", async () => {
    if (!(await confirmed(`Revoke ${one.name}? Whoever uses it is locked out at once.`, "Revoke"))) return;
    await del(`/tokens/${encodeURIComponent(one.id)}`);
    toast(`${one.name} is revoked.`);
    changed();
  }, { kind: "danger small" });
  return h("tr", { class: one.revoked_at ? "faint" : "" },
    h("td", one.name, one.kind === "browser" ? h("span.tag", "browser") : null), h("td", one.actor), h("td", one.role),
    h("td", one.last_used_at ? agoOf(one.last_used_at) : "never"),
    h("td", { title: dateTime(one.created_at) }, agoOf(one.created_at)),
    h("td", one.revoked_at ? "revoked" : revoke));
}
