// Form fields that choose an agent or a directory.

import { get, trackRequests } from "./api.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { createFailure } from "./parts.js";

/** Create a select of the agents for which `filter` is true. Agents that cannot run here are listed but disabled. */
export function createAgentPicker(chosen = "", filter = () => true) {
  // until the agents are loaded, the form submits the chosen agent or the default
  const select = h("select", { name: "agent" }, h("option", { value: chosen }, chosen || "…"));
  select.ready = (async () => {
    const { agents: all, default: preset } = await get("/agents");
    const agents = all.filter(filter);
    const defaultAgent = agents.find((agent) => agent.name === preset) ??
      agents.find((agent) => agent.live && !agent.problem);
    const selected = chosen || defaultAgent?.name;
    select.replaceChildren(...agents.map((agent) => h("option", {
      value: agent.name, disabled: Boolean(agent.problem), selected: agent.name === selected,
      title: agent.description ?? "",
    }, `${agent.name}${agent.problem ? " (cannot run here)" : agent.live ? "" : " (offline)"}`)));
    return agents;
  })();
  select.ready.catch(() => {});
  return select;
}

/** Create an input for an absolute path, with a button to browse the directories of the server. */
export function createDirectoryPicker(chosen = "") {
  const input = h("input.mono", {
    name: "workdir", value: chosen, placeholder: "/path, or agent default", spellcheck: false,
    autocomplete: "off",
  });
  const browse = h("button", { type: "button", title: "Browse directories on the server" }, icon("folder"),
    h("span", "Browse"));
  browse.addEventListener("click", async () => {
    const directory = await chooseDirectory(input.value.trim());
    if (directory !== null) {
      input.value = directory;
      input.dispatchEvent(new Event("change", { bubbles: true }));
    }
    browse.focus();
  });
  return h("div.with-button", input, browse);
}

function chooseDirectory(start) {
  return new Promise((resolve) => {
    const path = h("input.mono", { "aria-label": "Path", spellcheck: false, autocomplete: "off" });
    const list = h("ul.directories", { "aria-label": "Directories" });
    const dialog = h("dialog.dialog.picker",
      { onclose: () => { resolve(dialog.returnValue === "yes" ? path.value : null); dialog.remove(); } },
      h("form", { method: "dialog" },
        h("h2", "Choose a directory"), path, list,
        h("div.dialog-buttons", h("button", { type: "submit", value: "no" }, "Cancel"),
          h("button.primary", { type: "submit", value: "yes" }, "Use this directory"))));
    const startRequest = trackRequests();
    let typed = false;
    const openDirectory = async (to) => {
      const { isLatest } = startRequest();
      typed = false;
      list.inert = true; // it still shows the previous directory
      if (to) path.value = to; // the button uses it even before the reply arrives
      try {
        const listing = await get(`/directories${to ? `?path=${encodeURIComponent(to)}` : ""}`);
        if (!isLatest()) return;
        if (!typed) path.value = listing.path;
        list.replaceChildren(
          ...(listing.parent ? [createEntry("..", "up", () => openDirectory(listing.parent))] : []),
          ...listing.directories.map((name) =>
            createEntry(name, "folder", () => openDirectory(`${listing.path.replace(/\/$/, "")}/${name}`))));
        if (!listing.directories.length) list.append(h("li.faint.padded", "No subdirectories"));
        list.inert = false;
        if (!typed) list.querySelector("button")?.focus();
      } catch (problem) {
        if (!isLatest()) return;
        list.inert = false;
        list.replaceChildren(h("li", createFailure(problem, to ? () => openDirectory("") : null)));
      }
    };
    path.addEventListener("input", () => { typed = true; });
    path.addEventListener("keydown", (pressed) => {
      if (pressed.key !== "Enter") return;
      pressed.preventDefault();
      openDirectory(path.value.trim());
    });
    document.body.append(dialog);
    dialog.showModal();
    openDirectory(start);
  });
}

function createEntry(name, shape, onclick) {
  return h("li", h("button.quiet", { type: "button", onclick }, icon(shape), h("span.truncate", name)));
}

const NOTICES = [
  ["", "as the channel says"], ["all", "all: starts, too"], ["result", "results, failures and questions"],
  ["changes", "results only if they change"], ["failures", "failures and questions"], ["questions", "questions"],
  ["digest:hourly", "hourly digest"], ["digest:daily", "daily digest"], ["off", "none"],
];

/** Return the choice of which notices are sent. A policy with a time of its own stays among the choices. */
export function createNoticesPicker(chosen = "") {
  const known = NOTICES.some(([value]) => value === chosen);
  const choices = known ? NOTICES : [...NOTICES, [chosen, chosen]];
  return h("select", { name: "notices" },
    choices.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}
