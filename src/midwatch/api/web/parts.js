// The pieces every page is made of: status marks, rows of tasks, commands to copy, notices, dialogs, buttons that act.

import { firstLine, h, keyed, say } from "./dom.js";
import { icon } from "./icons.js";
import { statusText, waitText } from "./model.js";
import { single } from "./place.js";

/** A status with its own shape and colour. */
export function statusMark(task) {
  const node = h("span.status");
  return updateStatus(node, task);
}

export function updateStatus(node, task) {
  const text = statusText(task);
  node.dataset.status = text === "asking" ? "asking" : (task.status ?? "");
  say(node, text);
  node.title = waitText(task) ?? text;
  return node;
}

export const elapsed = (from, to) => h("mw-elapsed.num", { from, to: to ?? null });
export const agoOf = (at) => h("mw-ago.num", { at });

/** Times of a task: elapsed while it runs, how long it took when it ended, else since when it waits. */
export function updateElapsed(node, task) {
  const from = task.started_at ?? (task.status === "pending" ? task.created_at : null);
  attribute(node, "from", from);
  attribute(node, "to", task.completed_at ?? null);
}

export function attribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export const taskLink = (id, text) => (single ? null : h("a", { href: `/tasks/${id}` }, text));
export const sessionLink = (key) => h("a", { href: `/sessions/${encodeURIComponent(key)}` }, key);
/** A task by its prompt; a step of a goal by the goal, as all their prompts begin alike. */
export const promptText = (task) =>
  firstLine((task.cause === "goal" && /^Goal: .+$/m.exec(task.prompt ?? "")?.[0]) || task.prompt) || "(no prompt)";

/** A command with a button that copies it. */
export function command(text) {
  return h("span.command", h("code", text), copyButton(text, `Copy ${text}`));
}

export function copyButton(text, label = "Copy") {
  const button = h("button.icon-button.copy", { type: "button", title: "Copy" }, icon("copy", 14));
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    await copy(typeof text === "function" ? text() : text);
    button.replaceChildren(icon("check", 14));
    setTimeout(() => button.replaceChildren(icon("copy", 14)), 1500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = h("textarea.away", { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy"); // pages that are not on a secure address have no clipboard
  area.remove();
}

/** What to see and do where there is nothing yet. */
export function empty(title, text, ...more) {
  return h("div.empty", h("p.empty-title", title), text ? h("p", text) : null,
    more.some(Boolean) ? h("div.empty-actions", more) : null);
}

/** A short notice that goes away by itself; errors stay longer. */
export function toast(text, tone = "plain") {
  const node = h("p.toast", { data: { tone } }, text);
  const place = document.getElementById("toasts");
  const above = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  if (place.parentNode !== above) above.append(place); // what is outside of an open dialog is covered, and not read out
  place.append(node);
  setTimeout(() => node.remove(), tone === "bad" ? 9000 : 3500);
}

// a dialog takes none along
document.addEventListener("close", () => document.body.append(document.getElementById("toasts")), true);

/** Put the cursor where one begins, unless somebody has it elsewhere already. */
export function beginAt(node) {
  if ([document.body, document.getElementById("main")].includes(document.activeElement))
    node.focus({ preventScroll: true });
}

/** A button that acts on the server: busy while it does, its problem is told. */
export function actButton(label, action, { kind = "", iconName = null, title = "" } = {}) {
  const button = h("button", { type: "button", class: kind, title, "aria-label": label ? null : title },
    iconName ? icon(iconName) : null, h("span", label));
  button.addEventListener("click", () => act(button, action));
  return button;
}

/** Keep `place` equal to the buttons that are wanted, by name. Those that stay are not made anew: what is pressed in
 * one moment must still be there when it is let go. */
export function buttons(place, wanted, make, disabled = {}) {
  const focused = place.contains(document.activeElement);
  keyed(place, wanted, (name) => name, (name) => make[name](), (node, name) => {
    if (name in disabled) node.disabled = disabled[name];
  });
  if (focused && !place.contains(document.activeElement)) place.firstElementChild?.focus();
}

export async function act(button, action) {
  if (button?.getAttribute("aria-busy") === "true") return undefined;
  button?.setAttribute("aria-busy", "true");
  try {
    return await action();
  } catch (problem) {
    toast(problem.message, "bad");
    return undefined;
  } finally {
    button?.removeAttribute("aria-busy");
  }
}

/** Ask before something that cannot be undone. Resolves to whether to do it. */
export function confirmed(question, verb) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog.dialog",
      { onclose: () => { resolve(dialog.returnValue === "yes"); dialog.remove(); } },
      h("form", { method: "dialog" },
        h("p", question),
        h("div.dialog-buttons",
          h("button", { type: "submit", value: "no" }, "Keep"),
          h("button.danger", { type: "submit", value: "yes" }, verb))),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A small form over the page. `send` gets what was filled in; its problem is told in the form, else it closes. */
export function ask(title, fields, verb, send, { kind = "primary" } = {}) {
  const button = h("button", { type: "submit", class: kind }, verb);
  const dialog = h("dialog.dialog", { onclose: () => dialog.remove() },
    h("form", { method: "dialog", noValidate: true },
      h("h2", title), fields,
      h("div.dialog-buttons", h("button", { type: "button", onclick: () => dialog.close() }, "Back"), button)));
  const form = dialog.firstElementChild;
  form.addEventListener("submit", (sent) => {
    sent.preventDefault();
    act(button, async () => {
      try {
        await send(Object.fromEntries(new FormData(form)));
        dialog.close();
      } catch (problem) {
        showProblem(form, problem);
      }
    });
  });
  document.body.append(dialog);
  dialog.showModal();
  form.querySelector("textarea, input")?.focus();
}

/** A titled panel; `body` is the element to fill. */
export function panel(title, { name = "", actions = [], body = h("div.panel-body"), count = false } = {}) {
  const counter = count ? h("span.count.num", "") : null;
  const node = h("section.panel", { class: name },
    h("div.panel-head", h("h2", title), counter, h("span.spacer"), ...actions),
    body);
  return { node, body, counter };
}

/** The head of a page. */
export function pageHead(title, ...actions) {
  return h("div.page-head", h("h1", title), h("span.spacer"), ...actions);
}

/** Reserved lines, shown until the first data has come. */
export function skeleton(lines = 3) {
  return h("div.skeleton", { "aria-hidden": "true" }, Array.from({ length: lines }, () => h("i")));
}

/** A problem where the content should be. */
export function failure(problem, again) {
  const retry = again && problem.status !== 404 ? h("button", { type: "button", onclick: again }, "Try again") : null;
  const title = problem.status === 404 ? "Not found" : "This could not be loaded";
  const node = empty(title, problem.message, retry);
  if (problem.status === 404) node.append(h("div.empty-actions", h("a.button", { href: "/" }, "To Now")));
  else node.classList.add("load-failed");
  return node;
}

/** A form field with its label, hint and place for an error. */
export function field(label, input, hint = null) {
  const id = input.id || `f-${Math.random().toString(36).slice(2, 8)}`;
  const target = input.matches("input, textarea, select") ? input : input.querySelector("input, textarea, select");
  target.id = id;
  return h("div.field", h("label", { htmlFor: id }, label), input, hint ? h("p.hint", hint) : null,
    h("p.field-error", { hidden: true }));
}

/** Show a problem at the field it is about, or as a notice. */
export function showProblem(form, problem) {
  for (const old of form.querySelectorAll(".field-error")) old.hidden = true;
  const input = problem.field ? form.querySelector(`[name="${CSS.escape(problem.field)}"]`) : null;
  const place = input?.closest(".field")?.querySelector(".field-error");
  if (!place) return toast(problem.message, "bad");
  say(place, problem.message).hidden = false;
  input.closest("details")?.setAttribute("open", "");
  input.focus();
  return undefined;
}
