// Agents: which agents exist, whether they can run, and a real test.

import { get, post, trackRequests } from "../api.js";
import { createNavigator } from "../app.js";
import { desk } from "../desk.js";
import { createRequestKey, h, limitToFrame, renderKeyed, setText } from "../dom.js";
import { createActionButton, createCommand, createEmpty, createPageHead, createSkeleton } from "../parts.js";
import { formatPeriod } from "../time.js";

export default async function renderAgents(main, page) {
  page.setTitle("Agents");
  const list = h("div.cards", createSkeleton(4));
  main.append(createPageHead("Agents", createActionButton("Refresh", () => read())), list);
  const startRequest = trackRequests();
  const read = async () => {
    const { accept } = startRequest();
    const { agents, default: defaultName } = await get("/agents");
    if (!page.isCurrent() || !accept()) return;
    list.querySelector(".skeleton")?.remove();
    const sorted = agents
      .map((agent) => ({ ...agent, preset: agent.name === defaultName }))
      .sort((a, b) => Number(!a.live) - Number(!b.live) ||
        Number(Boolean(a.problem)) - Number(Boolean(b.problem)) || a.name.localeCompare(b.name));
    renderKeyed(list, sorted, (agent) => agent.name, createCard, updateCard);
    list.querySelector(".empty")?.remove();
    if (!agents.length)
      list.append(createEmpty("No agents",
        "Install one, for example claude or codex, or define your own in midwatch.toml.",
        createCommand("midwatch agents")));
    list.querySelector(".hint-card")?.remove();
    if (agents.length && agents.every((agent) => agent.kind === "demo"))
      list.append(h("div.hint-card",
        createEmpty("Only the demo agent is available",
          "The demo agent uses no model. Install an agent such as claude, codex or gemini, and it is detected " +
            "automatically. Or define any command under [agents.NAME] in midwatch.toml.",
          createCommand("midwatch agents"), createCommand("midwatch doctor"))));
    count();
  };
  const count = limitToFrame(() => {
    const busy = new Map();
    for (const task of desk.running.values()) busy.set(task.agent, (busy.get(task.agent) ?? 0) + 1);
    for (const node of list.querySelectorAll("[data-agent]"))
      setText(node.querySelector(".busy"), busy.get(node.dataset.agent) ?? 0);
  });
  page.onLeave(desk.on("tasks", count));
  await read();
}

function createCard(agent) {
  const test = createActionButton("Test", async () => {
    const navigate = createNavigator();
    const task = await post(`/agents/${encodeURIComponent(agent.name)}/test`, {}, { key: createRequestKey() });
    navigate(`/tasks/${task.id}`);
  }, { kind: "action", title: "Run a short real task and watch it" });
  return h("article.panel.card", { data: { agent: agent.name } },
    h("div.card-head", h("h2", agent.name), h("span.tag", agent.kind ?? "remote"),
      h("span.tag.preset", { hidden: true }, "default"), h("span.spacer"), h("span.status")),
    h("p.dim.about"),
    h("p.problem", { hidden: true }),
    h("dl.facts",
      h("div.fact", h("dt", "Interface"), h("dd", h("b.interface"), h("span.why.dim"))),
      h("div.fact", h("dt", "Version"), h("dd.version")),
      h("div.fact", h("dt", "Command"), h("dd.mono.target")),
      h("div.fact", h("dt", "Slots"), h("dd.num", h("span.busy", "0"), " of ", h("span.slots"), " in use")),
      h("div.fact", h("dt", "Timeout"), h("dd.timeout")),
      h("div.fact", h("dt", "After a crash"), h("dd.crash"))),
    h("div.card-foot", test,
      h("a.button.quiet.action", { href: `/tasks/new?agent=${encodeURIComponent(agent.name)}` }, "New task"),
      h("a.button.quiet", { href: `/tasks?agent=${encodeURIComponent(agent.name)}` }, "View tasks")));
}

function updateCard(node, agent) {
  const set = (name, text) => setText(node.querySelector(name), text);
  const status = node.querySelector(".status");
  status.dataset.status = agent.problem ? "failed" : agent.live ? "live" : "pending";
  setText(status, agent.problem ? "cannot run" : agent.live ? "live" : "offline");
  node.querySelector(".preset").hidden = !agent.preset;
  set(".about", agent.description || (agent.kind ? "" : "Provided by another running process"));
  set("p.problem", agent.problem ?? "");
  node.querySelector("p.problem").hidden = !agent.problem;
  set(".interface", agent.way ?? agent.kind ?? "another process");
  set(".why", agent.why ? ` ${agent.why}` : "");
  set(".version", agent.version ?? "");
  node.querySelector(".version").closest(".fact").hidden = !agent.version;
  set(".target", agent.command ?? agent.target ?? "–");
  set(".slots", agent.slots ?? "–");
  set(".timeout", agent.timeout == null ? "none" : formatPeriod(agent.timeout));
  set(".crash", agent.on_crash ?? "–");
  for (const button of node.querySelectorAll(".card-foot .action")) button.hidden = Boolean(agent.problem);
}
