// Choosing an agent and a directory, in every form that needs them.

import { asking, get } from "./api.js";
import { h } from "./dom.js";
import { icon } from "./icons.js";
import { failure } from "./parts.js";

/** A select of the agents that `fits` likes. Those that cannot run here are listed, with the reason, and cannot be
 * chosen. */
export function agentPicker(chosen = "", fits = () => true) {
  // who is quicker than the answer gets what was chosen, or the default
  const select = h("select", { name: "agent" }, h("option", { value: chosen }, chosen || "…"));
  select.ready = (async () => {
    const { agents: all, default: preset } = await get("/agents");
    const agents = all.filter(fits);
    const usual = agents.find((one) => one.name === preset) ?? agents.find((one) => one.live && !one.problem);
    const wanted = chosen || usual?.name;
    select.replaceChildren(...agents.map((one) => h("option", {
      value: one.name, disabled: Boolean(one.problem), selected: one.name === wanted, title: one.description ?? "",
    }, `${one.name}${one.problem ? " (cannot run here)" : one.live ? "" : " (no live process)"}`)));
    return agents;
  })();
  select.ready.catch(() => {});
  return select;
}

/** An input for an absolute path with a button that looks around on the server. */
export function directoryPicker(chosen = "") {
  const input = h("input.mono", {
    name: "workdir", value: chosen, placeholder: "/path, or the agent's own", spellcheck: false, autocomplete: "off",
  });
  const browse = h("button", { type: "button", title: "Look for a directory" }, icon("folder"), h("span", "Browse"));
  browse.addEventListener("click", async () => {
    const found = await chooseDirectory(input.value.trim());
    if (found !== null) {
      input.value = found;
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
          h("button.primary", { type: "submit", value: "yes" }, "Use this one"))));
    const ask = asking();
    let typed = false;
    const enter = async (to) => {
      const { isLast } = ask();
      typed = false;
      list.inert = true; // it is that of the directory before
      if (to) path.value = to; // "Use this one" means it, also before its answer has come
      try {
        const found = await get(`/directories${to ? `?path=${encodeURIComponent(to)}` : ""}`);
        if (!isLast()) return;
        if (!typed) path.value = found.path;
        list.replaceChildren(
          ...(found.parent ? [entry("..", "up", () => enter(found.parent))] : []),
          ...found.directories.map((name) =>
            entry(name, "folder", () => enter(`${found.path.replace(/\/$/, "")}/${name}`))));
        if (!found.directories.length) list.append(h("li.faint.padded", "no directories in here"));
        list.inert = false;
        if (!typed) list.querySelector("button")?.focus();
      } catch (problem) {
        if (!isLast()) return;
        list.inert = false;
        list.replaceChildren(h("li", failure(problem, to ? () => enter("") : null)));
      }
    };
    path.addEventListener("input", () => { typed = true; });
    path.addEventListener("keydown", (pressed) => {
      if (pressed.key !== "Enter") return;
      pressed.preventDefault();
      enter(path.value.trim());
    });
    document.body.append(dialog);
    dialog.showModal();
    enter(start);
  });
}

function entry(name, shape, onclick) {
  return h("li", h("button.quiet", { type: "button", onclick }, icon(shape), h("span.cut", name)));
}
