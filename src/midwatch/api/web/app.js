// The shell: which page is shown at which address, navigation, title, connection, shortcuts.

import { get } from "./api.js";
import { desk } from "./desk.js";
import { h, say } from "./dom.js";
import { icon } from "./icons.js";
import { shortcut, showHelp } from "./keys.js";
import { failure, skeleton, toast } from "./parts.js";
import { single } from "./place.js";
import { stream } from "./stream.js";

// One line per page: address, module, entry of the navigation it belongs to. The first match counts. Entries that are
// rare are behind "More" on a phone.
const PAGES = [
  ["/", () => import("./pages/now.js"), { name: "Now", icon: "now", key: "n" }],
  ["/inbox", () => import("./pages/inbox.js"), { name: "Inbox", icon: "inbox", key: "i" }],
  ["/tasks", () => import("./pages/tasks.js"), { name: "Tasks", icon: "tasks", key: "t" }],
  ["/tasks/new", () => import("./pages/submit.js"), "/tasks"],
  ["/tasks/:id", () => import("./pages/task.js"), "/tasks"],
  ["/sessions", () => import("./pages/sessions.js"), { name: "Sessions", icon: "sessions", key: "s" }],
  ["/sessions/:key", () => import("./pages/session.js"), "/sessions"],
  [
    "/automations", () => import("./pages/automations.js"),
    { name: "Automations", short: "Auto", icon: "automations", key: "a" },
  ],
  ["/automations/new", () => import("./pages/automation-form.js"), "/automations"],
  ["/automations/:id", () => import("./pages/automation.js"), "/automations"],
  ["/goals", () => import("./pages/goals.js"), { name: "Goals", icon: "goals", key: "o", rare: true }],
  ["/goals/new", () => import("./pages/goal-form.js"), "/goals"],
  ["/goals/:id", () => import("./pages/goal.js"), "/goals"],
  ["/handoffs", () => import("./pages/handoffs.js"), { name: "Handoffs", icon: "handoffs", key: "h", rare: true }],
  ["/handoffs/:id", () => import("./pages/handoff.js"), "/handoffs"],
  ["/events", () => import("./pages/events.js"), { name: "Events", icon: "events", key: "e", rare: true }],
  ["/usage", () => import("./pages/usage.js"), { name: "Usage", icon: "usage", key: "u", rare: true }],
  ["/agents", () => import("./pages/agents.js"), { name: "Agents", icon: "agents", key: "w", rare: true }],
  ["/settings", () => import("./pages/settings.js"), { name: "Settings", icon: "settings", key: ",", rare: true }],
  ["/sign-in", () => import("./pages/sign-in.js"), null],
];

const main = document.getElementById("main");
let leave = null;
let shown = null;
let title = "midwatch";

function match(path) {
  if (single) return { load: () => import("./pages/session.js"), entry: null, params: { key: single } };
  for (const [pattern, load, entry] of PAGES) {
    const found = new RegExp(`^${pattern.replace(/:(\w+)/g, "(?<$1>.+)")}$`).exec(path.replace(/(.)\/$/, "$1"));
    if (!found) continue;
    const params = Object.fromEntries(Object.entries(found.groups ?? {})
      .map(([name, value]) => [name, decodeURIComponent(value)]));
    return { load, entry: typeof entry === "string" ? entry : pattern, params };
  }
  return null;
}

async function show() {
  const token = (shown = {});
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // it belongs to the page that is left
  leave?.();
  leave = null;
  const page = match(location.pathname);
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.pathname === page?.entry) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.getElementById("nav").classList.toggle("at-rare",
    Boolean(document.querySelector("#nav a.rare[aria-current]")));
  document.body.classList.toggle("bare", location.pathname === "/sign-in");
  if (!page) return fail({ status: 404, message: "There is no page at this address." });
  if (!main.firstChild) main.replaceChildren(skeleton(6));
  try {
    const module = await page.load();
    if (shown !== token) return undefined;
    const stops = [];
    main.replaceChildren();
    main.className = "";
    window.scrollTo(0, 0);
    leave = () => stops.splice(0).forEach((stop) => stop());
    const context = {
      params: page.params,
      search: new URLSearchParams(location.search),
      setTitle: (text) => { if (shown === token) setTitle(text); },
      whenLeft: (stop) => stops.push(stop),
      isShown: () => shown === token,
    };
    await module.default(main, context);
  } catch (problem) {
    if (shown === token) fail(problem);
    const left = shown !== token && problem.name === "AbortError"; // its page was left, and what it asked for given up
    if (!(problem.status >= 0) && !left) reportError(problem);
  }
  return undefined;
}

/** A problem where the page should be. */
function fail(problem) {
  const node = failure(problem, show);
  const { textContent: text } = node.firstChild;
  node.firstChild.replaceWith(h("h1.empty-title", text));
  main.replaceChildren(node);
  setTitle(text);
}

/** Go to another page without loading the document again. */
export function go(address, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  show();
  main.focus({ preventScroll: true });
}

/** For an answer that leads on: what this returns goes there only if the page that asked is still shown. */
export function onward() {
  const asked = shown;
  return (address) => { if (shown === asked) go(address); };
}

function setTitle(text) {
  title = text;
  drawTitle();
}

function drawTitle() {
  const waiting = desk.approvals.size;
  document.title = `${waiting ? `(${waiting}) ` : ""}${title} · midwatch`;
  const badge = document.querySelector("#nav .badge");
  if (badge) {
    say(badge, waiting || "");
    badge.title = waiting ? `${waiting} waiting for an answer` : "";
  }
}

function drawNav() {
  const nav = document.getElementById("nav");
  const entries = PAGES.filter(([, , entry]) => typeof entry === "object" && entry);
  nav.replaceChildren(
    ...entries.map(([path, , { name, short = null, icon: shape, key, rare = false }]) => {
      shortcut(`g ${key}`, `Go to ${name}`, () => go(path));
      const words = short ? [h("span.long", name), h("span.short", short)] : h("span", name);
      return h("a",
        { href: path, title: `${name} (g ${key})`, "aria-label": short ? name : null, class: rare ? "rare" : "" },
        icon(shape), words, path === "/inbox" ? h("b.badge.num") : null);
    }),
    moreButton(),
  );
  shortcut("n", "New task", () => go("/tasks/new"));
  shortcut("c", "New session", () => go("/sessions?new=1"));
}

/** On a phone: shows the rare pages, until one is chosen. */
function moreButton() {
  const nav = document.getElementById("nav");
  const button = h("button.more-pages", { type: "button", "aria-expanded": "false", "aria-controls": "nav" },
    icon("more"), h("span", "More"));
  const open = (wanted) => {
    nav.classList.toggle("open", wanted);
    button.setAttribute("aria-expanded", String(wanted));
  };
  button.addEventListener("click", () => open(!nav.classList.contains("open")));
  document.addEventListener("click", (clicked) => { if (!button.contains(clicked.target)) open(false); });
  return button;
}

let lost = false;

function connection(status) {
  drawConnection(status);
  if (status === "live" && lost) {
    whoAmI();
    if (main.querySelector(".load-failed")) show(); // what could not be loaded meanwhile
  }
  lost = status === "offline" || (lost && status !== "live");
}

function drawConnection(status) {
  const node = document.getElementById("link-state");
  const banner = document.getElementById("banner");
  node.dataset.state = status;
  say(node.lastElementChild,
    { live: "live", offline: "offline", connecting: "connecting", resting: "resting" }[status]);
  banner.hidden = status !== "offline";
  if (status === "offline")
    say(banner, "Offline: the server does not answer. What you see may be old; trying again by itself.");
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("midwatch.theme", root.dataset.theme);
  } catch {
    // not remembered, then
  }
}

/** Who speaks, and to which version; asked again after each lost connection. */
async function whoAmI() {
  const me = await get("/me").catch((problem) => problem);
  if (!me.actor) return me.status;
  if (desk.me && desk.me.version !== me.version)
    toast("midwatch was updated; reload this page to have the new console.");
  desk.me = me;
  document.body.classList.toggle("viewer", me.role === "viewer");
  say(document.getElementById("who"), me.actor === me.role ? me.actor : `${me.actor} (${me.role})`);
  return 200;
}

document.addEventListener("click", (clicked) => {
  const link = clicked.target.closest?.("a[href]");
  if (!link || clicked.defaultPrevented || clicked.button || clicked.metaKey || clicked.ctrlKey || clicked.shiftKey ||
      clicked.altKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download") ||
      link.getAttribute("href").startsWith("#")) return;
  if (single || !match(link.pathname)) return;
  clicked.preventDefault();
  if (link.href !== location.href) go(link.pathname + link.search + link.hash);
});
document.querySelector(".skip").addEventListener("click", (clicked) => {
  clicked.preventDefault();
  main.focus();
});
window.addEventListener("popstate", show);
document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("help").addEventListener("click", showHelp);

document.getElementById("theme").append(icon("theme"));
document.getElementById("help").append(icon("help"));
document.body.classList.toggle("single", Boolean(single));
if (single) document.querySelector(".brand").removeAttribute("href");
else drawNav();
shortcut("/", "Filter, or write a message", () => {
  const target = main.querySelector("[data-slash]");
  target?.focus();
  return Boolean(target);
});
shortcut("t", "Light or dark", toggleTheme);
shortcut("?", "This help", showHelp);

async function start() {
  if (location.pathname === "/sign-in") return show();
  main.replaceChildren(skeleton(6));
  if ((await whoAmI()) === 401) return undefined;
  desk.on("approvals", drawTitle);
  stream.on({ status: connection });
  stream.start();
  desk.start();
  // so that a page opens also while offline
  if (!single) setTimeout(() => PAGES.forEach(([, load]) => load().catch(() => {})), 1500);
  return show();
}

start();
