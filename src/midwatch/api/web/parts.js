// Elements that all pages share: status, panels, forms, dialogs, toasts, and buttons that call the server.

import { getFirstLine, h, renderKeyed, setText } from "./dom.js";
import { icon } from "./icons.js";
import { formatStatus, formatWait } from "./model.js";
import { singleSession } from "./place.js";

/** Create the status of a task, with its own shape and colour. */
export function createStatus(task) {
  return updateStatus(h("span.status"), task);
}

export function updateStatus(node, task) {
  const text = formatStatus(task);
  node.dataset.status = text === "asking" ? "asking" : (task.status ?? "");
  setText(node, text);
  node.title = formatWait(task) ?? text;
  return node;
}

export const createElapsed = (from, to) => h("mw-elapsed.num", { from, to: to ?? null });
export const createAgo = (at) => h("mw-ago.num", { at });

/** Show how long a task runs or ran; a pending task, also one that ran before, has no time. */
export function updateElapsed(node, task) {
  const isPending = task.status === "pending";
  setAttribute(node, "from", isPending ? null : task.started_at);
  setAttribute(node, "to", isPending ? null : task.completed_at);
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export const createTaskLink = (id, text) => (singleSession ? null : h("a", { href: `/tasks/${id}` }, text));
export const createSessionLink = (key) => h("a", { href: `/sessions/${encodeURIComponent(key)}` }, key);
/** Return the first line of a task's prompt; for a step of a goal the goal, because all its prompts start alike. */
export const formatPrompt = (task) =>
  getFirstLine((task.cause === "goal" && /^Goal: .+$/m.exec(task.prompt ?? "")?.[0]) || task.prompt) || "(no prompt)";

/** Create a shell command with a copy button. */
export function createCommand(text) {
  return h("span.command", h("code", text), createCopyButton(text, `Copy ${text}`));
}

export function createCopyButton(text, label = "Copy") {
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
  const area = h("textarea.offscreen", { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy"); // only secure addresses have a clipboard
  area.remove();
}

/** Create what an empty list shows: a title, an explanation and what to do. */
export function createEmpty(title, text, ...more) {
  return h("div.empty", h("p.empty-title", title), text ? h("p", text) : null,
    more.some(Boolean) ? h("div.empty-actions", more) : null);
}

/** Show a short message that disappears by itself; errors stay longer. */
export function showToast(text, tone = "plain") {
  const node = h("p.toast", { data: { tone } }, text);
  const place = document.getElementById("toasts");
  const above = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  if (place.parentNode !== above) above.append(place); // an open dialog hides the rest of the page
  place.append(node);
  setTimeout(() => node.remove(), tone === "bad" ? 9000 : 3500);
}

// the toasts must not be removed together with a dialog
document.addEventListener("close", () => document.body.append(document.getElementById("toasts")), true);

/** Focus a field, unless the user has focused something else already. */
export function focusFirst(node) {
  if ([document.body, document.getElementById("main")].includes(document.activeElement))
    node.focus({ preventScroll: true });
}

/** Create a button that runs an action on the server. It is busy meanwhile, and a problem is shown as a toast. */
export function createActionButton(label, action, { kind = "", iconName = null, title = "" } = {}) {
  const button = h("button", { type: "button", class: kind, title, "aria-label": label ? null : title },
    iconName ? icon(iconName) : null, h("span", label));
  button.addEventListener("click", () => runAction(button, action));
  return button;
}

/** Show the buttons with these names in `place`. Buttons that stay are kept: one that is replaced between press and
 * release of the mouse would never be clicked. */
export function renderButtons(place, names, make, disabled = {}) {
  const focused = place.contains(document.activeElement);
  renderKeyed(place, names, (name) => name, (name) => make[name](), (node, name) => {
    if (name in disabled) node.disabled = disabled[name];
  });
  if (focused && !place.contains(document.activeElement)) place.firstElementChild?.focus();
}

/** Run an action while the button is busy; a second click does nothing, a problem is shown as a toast. */
export async function runAction(button, action) {
  if (button?.getAttribute("aria-busy") === "true") return undefined;
  button?.setAttribute("aria-busy", "true");
  try {
    return await action();
  } catch (problem) {
    showToast(problem.message, "bad");
    return undefined;
  } finally {
    button?.removeAttribute("aria-busy");
  }
}

/** Ask before something that cannot be undone. Resolves to true if the user confirms. */
export function confirmAction(question, verb) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog.dialog",
      { onclose: () => { resolve(dialog.returnValue === "yes"); dialog.remove(); } },
      h("form", { method: "dialog" },
        h("p", question),
        h("div.dialog-buttons",
          h("button", { type: "submit", value: "no" }, "Back"),
          h("button.danger", { type: "submit", value: "yes" }, verb))),
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Open a form in a dialog, and return its first values. `send` gets the values; if it fails the problem is shown in
 * the form, else it closes. */
export function openForm(title, fields, verb, send, { kind = "primary" } = {}) {
  const button = h("button", { type: "submit", class: kind }, verb);
  const dialog = h("dialog.dialog", { onclose: () => dialog.remove() },
    h("form", { method: "dialog", noValidate: true },
      h("h2", title), fields,
      h("div.dialog-buttons", h("button", { type: "button", onclick: () => dialog.close() }, "Back"), button)));
  const form = dialog.firstElementChild;
  handleSubmit(form, button, async (values) => {
    await send(values);
    dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  form.querySelector("textarea, input")?.focus();
  return Object.fromEntries(new FormData(form));
}

/** Create a panel with a title. `content` fills its body with a padding; without it the caller fills `body`. */
export function createPanel(title, { name = "", actions = [], content = null, count = false } = {}) {
  const body = content ? h("div.panel-body.padded", content) : h("div.panel-body");
  const counter = count ? h("span.count.num", "") : null;
  const node = h("section.panel", { class: name },
    h("div.panel-head", h("h2", title), counter, h("span.spacer"), ...actions),
    body);
  return { node, body, counter };
}

/** Create a panel with a text and a button that copies it. */
export function createTextPanel(title, text, name = "") {
  return createPanel(title, {
    name, content: [text], actions: [createCopyButton(() => text.textContent, `Copy: ${title}`)],
  }).node;
}

/** Create the head of a page. */
export function createPageHead(title, ...actions) {
  return h("div.page-head", h("h1", title), h("span.spacer"), ...actions);
}

/** Create the head of a page about one thing, with a link back to the list. */
export function createDetailHead(address, listName, title, buttons) {
  return h("div.page-head",
    h("nav.crumbs", { "aria-label": "Breadcrumb" }, h("a", { href: address }, listName)), title, h("span.spacer"),
    buttons);
}

/** Show [name, value] pairs in a definition list; values that are not known are left out. */
export function renderFacts(list, facts) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  renderKeyed(list, known, ([name]) => name, ([name]) => h("div.fact", h("dt", name), h("dd")), (node, [, value]) => {
    if (!(value instanceof Node)) setText(node.lastChild, value);
    else if (node.lastChild.textContent !== value.textContent) node.lastChild.replaceChildren(value);
  });
}

/** Create a row of buttons for [value, text] pairs, of which one is pressed. */
export function createSegments(label, choices, chosen, choose) {
  const press = (pressed) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.value === pressed));
  };
  const buttons = choices.map(([value, text]) =>
    h("button", { type: "button", value, onclick: () => { press(value); choose(value); } }, text));
  press(chosen);
  return h("div.segments", { role: "group", "aria-label": label }, buttons);
}

/** Create a filter of tags: a chip for each chosen tag, which removes it, and a field for one more. */
export function createTagFilter(tags, choose) {
  const input = h("input", { type: "search", placeholder: "Tag", "aria-label": "Tag" });
  input.addEventListener("change", () => {
    const tag = input.value.trim();
    if (tag) choose([...tags.filter((other) => other !== tag), tag]);
  });
  const chips = tags.map((tag) => h("button.quiet", {
    type: "button", title: `Remove the tag ${tag}`, onclick: () => choose(tags.filter((other) => other !== tag)),
  }, `${tag} ×`));
  return [...chips, input];
}

/** Return whether a record has all the tags. */
export const hasTags = (record, tags) => tags.every((tag) => record.tags?.includes(tag));

/** Create placeholder lines, shown until the first data has arrived. */
export function createSkeleton(lines = 3) {
  return h("div.skeleton", { "aria-hidden": "true" }, Array.from({ length: lines }, () => h("i")));
}

/** Create what is shown when content could not be loaded. */
export function createFailure(problem, retry) {
  const button = retry && problem.status !== 404 ? h("button", { type: "button", onclick: retry }, "Try again") : null;
  const title = problem.status === 404 ? "Not found" : "Loading failed";
  const node = createEmpty(title, problem.message, button);
  if (problem.status === 404) node.append(h("div.empty-actions", h("a.button", { href: "/" }, "Go to Now")));
  else node.classList.add("load-failed");
  return node;
}

/** Create a form field with its label, hint and place for an error. */
export function createField(label, input, hint = null) {
  const id = input.id || `f-${Math.random().toString(36).slice(2, 8)}`;
  const target = input.matches("input, textarea, select") ? input : input.querySelector("input, textarea, select");
  target.id = id;
  return h("div.field", h("label", { htmlFor: id }, label), input, hint ? h("p.hint", hint) : null,
    h("p.field-error", { hidden: true }));
}

/** Return the values with these names that are not empty, trimmed. */
export const pickFilled = (values, names) => Object.fromEntries(
  names.filter((name) => values[name]?.trim()).map((name) => [name, values[name].trim()]));

/** Submit a form with Ctrl-Enter from any of its fields. */
export function submitWithKey(form) {
  form.addEventListener("keydown", (pressed) => {
    if (pressed.key !== "Enter" || !(pressed.ctrlKey || pressed.metaKey)) return;
    pressed.preventDefault();
    form.requestSubmit();
  });
}

/** Call `send` with the values of a form that is submitted. Show a problem at the field it is about. */
export function handleSubmit(form, button, send) {
  form.addEventListener("submit", (submitted) => {
    submitted.preventDefault();
    runAction(button, () =>
      send(Object.fromEntries(new FormData(form))).catch((problem) => showProblem(form, problem)));
  });
}

/** Create the last row of a form on its own page. */
export function createFormButtons(...buttons) {
  return h("div.form-buttons", buttons, h("span.hint", h("kbd", "Ctrl"), " ", h("kbd", "Enter"), " submits the form"));
}

/** Show a viewer why there is no form on this page. */
export function showReadOnly(main, title, verb) {
  main.append(createPageHead(title), h("section.panel", createEmpty("Read-only access",
    `Your role is viewer. To ${verb}, ask the owner for a token with the role operator.`)));
}

/** Show a problem at the field it is about, or as a toast. */
export function showProblem(form, problem) {
  for (const old of form.querySelectorAll(".field-error")) old.hidden = true;
  const input = problem.field ? form.querySelector(`[name="${CSS.escape(problem.field)}"]`) : null;
  const place = input?.closest(".field")?.querySelector(".field-error");
  if (!place) return showToast(problem.message, "bad");
  setText(place, problem.message).hidden = false;
  input.closest("details")?.setAttribute("open", "");
  input.focus();
  return undefined;
}
