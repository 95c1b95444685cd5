// The shell around all pages: routing, navigation, title, connection state, shortcuts.

import { get } from "./api.js";
import { desk } from "./desk.js";
import { h, setText } from "./dom.js";
import { icon } from "./icons.js";
import { addShortcut, showHelp } from "./keys.js";
import { createFailure, createSkeleton, showToast } from "./parts.js";
import { singleSession } from "./place.js";
import { stream } from "./stream.js";

// One line per page: address, module, navigation entry. The first match wins. On a phone, rare entries are behind
// "More".
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
  ["/rules", () => import("./pages/rules.js"), { name: "Rules", icon: "rules", key: "r", rare: true }],
  ["/budgets", () => import("./pages/budgets.js"), { name: "Budgets", icon: "budgets", key: "b", rare: true }],
  ["/budgets/:id", () => import("./pages/budget.js"), "/budgets"],
  ["/usage", () => import("./pages/usage.js"), { name: "Usage", icon: "usage", key: "u", rare: true }],
  ["/agents", () => import("./pages/agents.js"), { name: "Agents", icon: "agents", key: "w", rare: true }],
  ["/settings", () => import("./pages/settings.js"), { name: "Settings", icon: "settings", key: ",", rare: true }],
  ["/sign-in", () => import("./pages/sign-in.js"), null],
];

const main = document.getElementById("main");
let leave = null;
let current = null;
let pageTitle = "midwatch";

function matchPage(path) {
  if (singleSession) return { load: () => import("./pages/session.js"), entry: null, params: { key: singleSession } };
  for (const [pattern, load, entry] of PAGES) {
    const result = new RegExp(`^${pattern.replace(/:(\w+)/g, "(?<$1>.+)")}$`).exec(path.replace(/(.)\/$/, "$1"));
    if (!result) continue;
    const params = Object.fromEntries(Object.entries(result.groups ?? {})
      .map(([name, value]) => [name, decodeURIComponent(value)]));
    return { load, entry: typeof entry === "string" ? entry : pattern, params };
  }
  return null;
}

async function showPage() {
  const visit = (current = {});
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // belongs to the previous page
  leave?.();
  leave = null;
  const page = matchPage(location.pathname);
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.pathname === page?.entry) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.getElementById("nav").classList.toggle("at-rare",
    Boolean(document.querySelector("#nav a.rare[aria-current]")));
  document.body.classList.toggle("bare", location.pathname === "/sign-in");
  if (!page) return showFailure({ status: 404, message: "There is no page at this address." });
  if (!main.firstChild) main.replaceChildren(createSkeleton(6));
  try {
    const module = await page.load();
    await stream.ready;
    if (current !== visit) return undefined;
    const stops = [];
    main.replaceChildren();
    main.className = "";
    window.scrollTo(0, 0);
    leave = () => stops.splice(0).forEach((stop) => stop());
    const context = {
      params: page.params,
      search: new URLSearchParams(location.search),
      setTitle: (text) => { if (current === visit) setTitle(text); },
      onLeave: (stop) => stops.push(stop),
      isCurrent: () => current === visit,
    };
    await module.default(main, context);
  } catch (problem) {
    if (current === visit) showFailure(problem);
    const isAborted = current !== visit && problem.name === "AbortError"; // leaving a page aborts its requests
    if (!(problem.status >= 0) && !isAborted) reportError(problem);
  }
  return undefined;
}

/** Show a problem instead of the page. */
function showFailure(problem) {
  const node = createFailure(problem, showPage);
  const { textContent: text } = node.firstChild;
  node.firstChild.replaceWith(h("h1.empty-title", text));
  main.replaceChildren(node);
  setTitle(text);
}

/** Open another page without reloading the document. */
export function go(address, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  showPage();
  main.focus({ preventScroll: true });
}

/** Load the current page again. */
export const reloadPage = () => go(location.pathname + location.search, { replace: true });

/** Show a problem with a retry button in `node`, if its page is still open. */
export function showLoadFailure(page, node, problem) {
  if (page.isCurrent()) node.replaceChildren(createFailure(problem, reloadPage));
}

/** Return a function that navigates only while the page that called this is still open, since replies may come late. */
export function createNavigator() {
  const origin = current;
  return (address) => { if (current === origin) go(address); };
}

function setTitle(text) {
  pageTitle = text;
  drawTitle();
}

function drawTitle() {
  const waiting = desk.approvals.size;
  document.title = `${waiting ? `(${waiting}) ` : ""}${pageTitle} · midwatch`;
  const badge = document.querySelector("#nav .badge");
  if (badge) {
    setText(badge, waiting || "");
    badge.title = waiting ? `${waiting} waiting for an answer` : "";
  }
}

function drawNav() {
  const nav = document.getElementById("nav");
  const entries = PAGES.filter(([, , entry]) => typeof entry === "object" && entry);
  nav.replaceChildren(
    ...entries.map(([path, , { name, short = null, icon: shape, key, rare = false }]) => {
      addShortcut(`g ${key}`, `Go to ${name}`, () => go(path));
      const words = short ? [h("span.long", name), h("span.short", short)] : h("span", name);
      return h("a",
        { href: path, title: `${name} (g ${key})`, "aria-label": short ? name : null, class: rare ? "rare" : "" },
        icon(shape), words, path === "/inbox" ? h("b.badge.num") : null);
    }),
    createMoreButton(),
  );
  addShortcut("n", "New task", () => go("/tasks/new"));
  addShortcut("c", "New session", () => go("/sessions?new=1"));
}

/** Create the button that shows the rare pages on a phone. */
function createMoreButton() {
  const nav = document.getElementById("nav");
  const button = h("button.more-pages", { type: "button", "aria-expanded": "false", "aria-controls": "nav" },
    icon("more"), h("span", "More"));
  const open = (isOpen) => {
    nav.classList.toggle("open", isOpen);
    button.setAttribute("aria-expanded", String(isOpen));
  };
  button.addEventListener("click", () => open(!nav.classList.contains("open")));
  document.addEventListener("click", (clicked) => { if (!button.contains(clicked.target)) open(false); });
  return button;
}

let wasOffline = false;

function handleConnection(status) {
  drawConnection(status);
  if (status === "live" && wasOffline) {
    loadIdentity();
    if (main.querySelector(".load-failed")) showPage(); // retry what could not be loaded while offline
  }
  wasOffline = status === "offline" || (wasOffline && status !== "live");
}

function drawConnection(status) {
  const node = document.getElementById("link-state");
  const banner = document.getElementById("banner");
  node.dataset.state = status;
  setText(node.lastElementChild, status === "resting" ? "paused" : status);
  banner.hidden = status !== "offline";
  if (status === "offline")
    setText(banner, "Offline: the server does not respond. This page may be out of date. Reconnecting automatically.");
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("midwatch.theme", root.dataset.theme);
  } catch {
    // storage may be forbidden; the choice then lasts until the page is closed
  }
}

/** Load who is signed in and the server's version; repeated after each lost connection. */
async function loadIdentity() {
  const me = await get("/me").catch((problem) => problem);
  if (!me.actor) return me.status;
  if (desk.me && desk.me.version !== me.version)
    showToast("midwatch was updated. Reload this page to use the new console.");
  desk.me = me;
  document.body.classList.toggle("viewer", me.role === "viewer");
  setText(document.getElementById("who"), me.actor === me.role ? me.actor : `${me.actor} (${me.role})`);
  return 200;
}

document.addEventListener("click", (clicked) => {
  const link = clicked.target.closest?.("a[href]");
  if (!link || clicked.defaultPrevented || clicked.button || clicked.metaKey || clicked.ctrlKey || clicked.shiftKey ||
      clicked.altKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download") ||
      link.getAttribute("href").startsWith("#")) return;
  if (singleSession || !matchPage(link.pathname)) return;
  clicked.preventDefault();
  if (link.href !== location.href) go(link.pathname + link.search + link.hash);
});
document.querySelector(".skip").addEventListener("click", (clicked) => {
  clicked.preventDefault();
  main.focus();
});
window.addEventListener("popstate", showPage);
document.getElementById("theme").addEventListener("click", toggleTheme);
document.getElementById("help").addEventListener("click", showHelp);

document.getElementById("theme").append(icon("theme"));
document.getElementById("help").append(icon("help"));
document.body.classList.toggle("single", Boolean(singleSession));
if (singleSession) document.querySelector(".brand").removeAttribute("href");
else drawNav();
addShortcut("/", "Focus the filter or the message box", () => {
  const target = main.querySelector("[data-slash]");
  target?.focus();
  return Boolean(target);
});
addShortcut("t", "Switch between light and dark", toggleTheme);
addShortcut("?", "Show this help", showHelp);

async function start() {
  if (location.pathname === "/sign-in") return showPage();
  main.replaceChildren(createSkeleton(6));
  if ((await loadIdentity()) === 401) return undefined;
  desk.on("approvals", drawTitle);
  stream.on({ status: handleConnection });
  stream.start();
  desk.start();
  // load all pages early, so that they also open while offline
  if (!singleSession) setTimeout(() => PAGES.forEach(([, load]) => load().catch(() => {})), 1500);
  return showPage();
}

start();
