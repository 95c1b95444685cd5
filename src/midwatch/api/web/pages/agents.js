// Agents: who can do the work, whether they live, and a real test.

import { asking, get, post } from "../api.js";
import { onward } from "../app.js";
import { desk } from "../desk.js";
import { h, keyed, perFrame, say, wishKey } from "../dom.js";
import { actButton, command, empty, pageHead, skeleton } from "../parts.js";
import { length } from "../time.js";

export default async function agents(main, page) {
  page.setTitle("Agents");
  const list = h("div.cards", skeleton(4));
  main.append(pageHead("Agents", actButton("Look again", () => read())), list);
  const ask = asking();
  const read = async () => {
    const { isNext } = ask();
    const { agents: found, default: preset } = await get("/agents");
    if (!page.isShown() || !isNext()) return;
    list.querySelector(".skeleton")?.remove();
    const ranked = found
      .map((one) => ({ ...one, preset: one.name === preset }))
      .sort((a, b) => Number(!a.live) - Number(!b.live) ||
        Number(Boolean(a.problem)) - Number(Boolean(b.problem)) || a.name.localeCompare(b.name));
    keyed(list, ranked, (one) => one.name, card, update);
    list.querySelector(".empty")?.remove();
    if (!found.length)
      list.append(empty("No agents", "Install one, such as claude or codex, or describe your own in midwatch.toml.",
        command("midwatch agents")));
    list.querySelector(".hint-card")?.remove();
    if (found.length && found.every((one) => one.kind === "demo"))
      list.append(h("div.hint-card",
        empty("Only the demo so far",
          "It needs nothing and thinks nothing. Install an agent such as claude, codex or gemini and it is found; " +
            "or describe any command under [agents.NAME] in midwatch.toml.",
          command("midwatch agents"), command("midwatch doctor"))));
    count();
  };
  const count = perFrame(() => {
    const busy = new Map();
    for (const task of desk.running.values()) busy.set(task.agent, (busy.get(task.agent) ?? 0) + 1);
    for (const node of list.querySelectorAll("[data-agent]"))
      say(node.querySelector(".busy"), busy.get(node.dataset.agent) ?? 0);
  });
  page.whenLeft(desk.on("tasks", count));
  await read();
}

function card(one) {
  const test = actButton("Test", async () => {
    const lead = onward();
    const task = await post(`/agents/${encodeURIComponent(one.name)}/test`, {}, { key: wishKey() });
    lead(`/tasks/${task.id}`);
  }, { kind: "acts", title: "Hand it a short real task and watch" });
  return h("article.panel.card", { data: { agent: one.name } },
    h("div.card-head", h("h2", one.name), h("span.tag", one.kind ?? "elsewhere"),
      h("span.tag.preset", { hidden: true }, "default"), h("span.spacer"), h("span.status")),
    h("p.dim.about"),
    h("p.problem", { hidden: true }),
    h("dl.facts",
      h("div.fact", h("dt", "Driven by"), h("dd", h("b.way"), h("span.why.dim"))),
      h("div.fact", h("dt", "Version"), h("dd.version")),
      h("div.fact", h("dt", "Runs"), h("dd.mono.target")),
      h("div.fact", h("dt", "Slots"), h("dd.num", h("span.busy", "0"), " of ", h("span.slots"), " busy")),
      h("div.fact", h("dt", "Timeout"), h("dd.timeout")),
      h("div.fact", h("dt", "After a crash"), h("dd.crash"))),
    h("div.card-foot", test,
      h("a.button.quiet.acts", { href: `/tasks/new?agent=${encodeURIComponent(one.name)}` }, "New task"),
      h("a.button.quiet", { href: `/tasks?agent=${encodeURIComponent(one.name)}` }, "Its tasks")));
}

function update(node, one) {
  const set = (name, text) => say(node.querySelector(name), text);
  const status = node.querySelector(".status");
  status.dataset.status = one.problem ? "failed" : one.live ? "live" : "pending";
  say(status, one.problem ? "cannot run" : one.live ? "live" : "no process");
  node.querySelector(".preset").hidden = !one.preset;
  set(".about", one.description || (one.kind ? "" : "another live process offers it"));
  set("p.problem", one.problem ?? "");
  node.querySelector("p.problem").hidden = !one.problem;
  set(".way", one.way ?? one.kind ?? "another process");
  set(".why", one.why ? ` ${one.why}` : "");
  set(".version", one.version ?? "");
  node.querySelector(".version").closest(".fact").hidden = !one.version;
  set(".target", one.command ?? one.target ?? "–");
  set(".slots", one.slots ?? "–");
  set(".timeout", one.timeout == null ? "none" : length(one.timeout));
  set(".crash", one.on_crash ?? "–");
  for (const button of node.querySelectorAll(".card-foot .acts")) button.hidden = Boolean(one.problem);
}
