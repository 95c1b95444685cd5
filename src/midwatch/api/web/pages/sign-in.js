// Signing in: the one-time link does it at once, a token does it by hand.

import { post } from "../api.js";
import { h } from "../dom.js";
import { act, command, field, showProblem } from "../parts.js";

/** Only addresses of this console, so that a link cannot lead elsewhere. */
function nextPage(search) {
  const next = search.get("next") ?? "/";
  return next.startsWith("/") && !next.startsWith("//") && !next.includes("\\") ? next : "/";
}

export default async function signIn(main, page) {
  page.setTitle("Sign in");
  main.className = "sign-in";
  const next = nextPage(page.search);
  const code = location.hash.slice(1);
  const status = h("p.dim.told", { role: "status" }, code ? "Signing in…" : "");
  const token = h("input.mono",
    { name: "token", type: "password", required: true, autocomplete: "current-password", spellcheck: false });
  const button = h("button.primary", { type: "submit" }, "Sign in");
  const form = h("form.form", { hidden: Boolean(code), noValidate: true },
    field("Token", token,
      h("span", "Made with ", h("code", "midwatch token create"), ", or the content of the file ", h("code", "token"),
        " in the home directory.")),
    h("div.form-buttons", button));
  form.addEventListener("submit", (sent) => {
    sent.preventDefault();
    act(button, () => redeem({ token: token.value.trim() }, form, status, next));
  });
  main.append(h("div.sign-in-card",
    h("img", { src: "/web/mark.svg", alt: "", width: 44, height: 44 }),
    h("h1", "Sign in to midwatch"),
    status,
    h("p.dim", "On the machine it runs on, run"),
    command("midwatch open"),
    h("p.dim", "and this console opens, signed in. Or give a token:"), form));
  if (code) {
    history.replaceState(null, "", location.pathname + location.search); // the code works once; it need not stay
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
    status.className = body.code ? "problem told" : "told";
    if (body.token) showProblem(form, { message: problem.message, field: "token" });
    form.querySelector("input").focus();
  }
}
