// Budgets: what each tree of work may spend, what it has spent, and which of them ask for more.

import { get, trackRequests } from "../api.js";
import { showLoadFailure } from "../app.js";
import { followEvents } from "../automation-parts.js";
import { drawLimits, formatAccount, getOrigin, isSpendingEvent, updateAccountStatus } from "../budget.js";
import { desk } from "../desk.js";
import { h, limitToFrame, renderKeyed, setText } from "../dom.js";
import { createCommand, createEmpty, createPageHead, createPanel, createSkeleton } from "../parts.js";

const LISTED = 100;
const DELAY = 1000; // milliseconds between two readings of the list
const MODES = { ask: "asks when spent", stop: "stops when spent", wind_up: "winds up" };

export default async function renderBudgets(main, page) {
  page.setTitle("Budgets");
  const parts = { day: createList("Day"), work: createList("Work"), earlier: createList("Earlier days") };
  const loading = createSkeleton(5);
  const empty = h("section.panel", { hidden: true }, createEmpty("No budgets yet",
    "A budget limits what a task, and all work that grows out of it, may spend. It is shown here from its start.",
    createCommand('midwatch submit "Tidy up the tests" --budget tokens=200000,usd=1.5')));
  const body = h("div.stack", loading, empty, Object.values(parts).map((part) => part.node));
  main.append(createPageHead("Budgets", h("a.button", { href: "/usage" }, "Usage")), body);
  let accounts = null;
  const draw = limitToFrame(() => {
    if (!page.isCurrent() || !accounts) return;
    loading.remove();
    empty.hidden = accounts.length > 0;
    for (const [name, rows] of Object.entries(groupAccounts(accounts))) {
      parts[name].node.hidden = !rows.length;
      renderKeyed(parts[name].list, rows, (account) => account.id, createRow, updateRow);
    }
  });
  const startRequest = trackRequests();
  const read = async () => {
    const { accept } = startRequest();
    const { budgets } = await get(`/budgets?limit=${LISTED}`);
    if (!accept()) return;
    accounts = budgets;
    draw();
  };
  const readAgain = () => read().catch(() => {});
  const first = read();
  const findSubject = (event) => (isSpendingEvent(event) ? "all" : null);
  followEvents(page, { first, findSubject, read: readAgain, reset: readAgain, delay: DELAY });
  page.onLeave(desk.on("approvals", draw));
  await first.catch((problem) => showLoadFailure(page, body, problem));
}

function createList(title) {
  const panel = createPanel(title);
  const list = h("ol.rows.budget-list", { "aria-label": title });
  panel.body.append(list);
  panel.node.hidden = true;
  return { node: panel.node, list };
}

/** Separate the accounts of the newest day and of earlier days from those of work. The newest day is open. */
function groupAccounts(accounts) {
  const days = accounts.filter((account) => account.scope === "day").sort((a, b) => (a.id < b.id ? -1 : 1));
  const getDate = (account) => account.id.split(":")[1];
  const newest = days.length ? getDate(days.at(-1)) : null;
  return {
    day: days.filter((account) => getDate(account) === newest).map((account) => ({ ...account, open: true })),
    work: accounts.filter((account) => account.scope !== "day"),
    earlier: days.filter((account) => getDate(account) !== newest).reverse(),
  };
}

function createRow(account) {
  const parts = {
    status: h("span.status"), title: h("span.truncate.row-title"), meters: h("span.meters"),
    sub: h("span.row-sub.truncate"), actions: h("span.row-actions"), answer: h("a.button.small", "Answer"),
  };
  const origin = getOrigin(account);
  if (origin) parts.actions.append(parts.answer, h("a", { href: origin.href }, origin.name));
  const link = h("a.row.budget-row", { href: `/budgets/${encodeURIComponent(account.id)}` }, parts.status, parts.title,
    parts.meters, parts.sub);
  return Object.assign(h("li", link, parts.actions), { parts });
}

function updateRow(node, account) {
  const { status, title, meters, sub, answer } = node.parts;
  updateAccountStatus(status, account);
  setText(title, formatAccount(account)).title = account.title;
  drawLimits(meters, account);
  answer.hidden = !account.question;
  answer.href = `/inbox?question=${encodeURIComponent(account.question ?? "")}`;
  const asker = desk.approvals.get(account.question)?.agent || account.agent;
  const warned = account.warned ? `warned: ${account.warned.replaceAll(",", ", ")}` : null;
  const mode = account.scope === "day" ? "new tasks wait until midnight when spent" : MODES[account.on_budget];
  sub.classList.toggle("warn-text", Boolean(account.question));
  setText(sub, account.question ? `${asker ?? "An agent"} asks whether the work may go on`
    : [account.agent, mode, warned].filter(Boolean).join(" · "));
}
