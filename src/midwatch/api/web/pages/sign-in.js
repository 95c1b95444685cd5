// Signing in, with a one-time link or with a token.

import { post } from "../api.js";
import { h } from "../dom.js";
import { createCommand, createField, runAction, showProblem } from "../parts.js";

/** Return the page to open next: only an address of this console, so that no link leads elsewhere. */
function getNextPage(search) {
  const next = search.get("next") ?? "/";
  return next.startsWith("/") && !next.startsWith("//") && !next.includes("\\") ? next : "/";
}

export default async function renderSignIn(main, page) {
  page.setTitle("Sign in");
  main.className = "sign-in";
  const next = getNextPage(page.search);
  const code = location.hash.slice(1);
  const status = h("p.dim.capitalised", { role: "status" }, code ? "Signing in…" : "");
  const token = h("input.mono",
    { name: "token", type: "password", required: true, autocomplete: "current-password", spellcheck: false });
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const form = h("form.form", { hidden: Boolean(code), noValidate: true },
    createField("Token", token,
      h("span", "Create one with ", h("code", "midwatch token create"), ", or use the content of the file ",
        h("code", "token"),
        " in the home directory.")),
    h("div.form-buttons", button));
  form.addEventListener("submit", (sent) => {
    sent.preventDefault();
    runAction(button, () => redeem({ token: token.value.trim() }, form, status, next));
  });
  main.append(h("div.sign-in-card",
    h("img", { src: "/web/mark.svg", alt: "", width: 44, height: 44 }),
    h("h1", "Sign in to midwatch"),
    status,
    h("p.dim", "On the computer where midwatch runs, run"),
    createCommand("midwatch open"),
    h("p.dim", "to open this console signed in. Or enter a token:"), form));
  if (code) {
    history.replaceState(null, "", location.pathname + location.search); // the code works only once, so remove it
    await redeem({ code }, form, status, next);
  } else token.focus();
}

async function redeem(body, form, status, next) {
  if (body.token === "") return;
  try {
    await post("/sign-in", body, { stay: true });
    location.replace(next);
  } catch (problem) {
    form.hidden = false;
    status.textContent = body.code ? problem.message : "";
    status.className = body.code ? "problem capitalised" : "capitalised";
    if (body.token) showProblem(form, { message: problem.message, field: "token" });
    form.querySelector("input").focus();
  }
}
