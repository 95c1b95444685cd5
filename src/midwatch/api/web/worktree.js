// The branch a task worked on in a directory of its own: what changed, the change itself, merge and remove.

import { asking, get, post } from "./api.js";
import { patchDiffs } from "./diff.js";
import { h, say } from "./dom.js";
import { icon } from "./icons.js";
import { actButton, confirmed, copyButton, panel, toast } from "./parts.js";
import { stream } from "./stream.js";

const STATES = {
  planned: "made when it starts", making: "being made", kept: "kept", merged: "merged", removed: "removed",
};

/** The panel; `show(task)` brings it up to date. */
export function worktreePanel(page) {
  const { node, body } = panel("Branch", { name: "worktree" });
  node.hidden = true;
  body.classList.add("padded");
  const view = {
    branch: h("code"), status: h("span.status"), stat: h("span.num"), where: h("p.faint.said"),
    note: h("p.warn-text.said", { hidden: true }), diffs: h("div.diffs"),
  };
  let info = null;
  let shown = null;
  const ask = asking();
  const askDiff = asking();
  const take = (found, { isNext }) => { if (isNext()) { info = found; draw(); } };
  const read = async () => {
    const asked = ask();
    const found = await get(`/worktrees/${info.id}`).catch(() => null);
    if (!found || !asked.isNext()) return;
    info = found;
    draw();
    if (look.open && !look.hidden) await readDiff();
  };
  const readDiff = async () => {
    const { isNext } = askDiff();
    const found = await get(`/worktrees/${info.id}/diff?limit=1000000`).catch((problem) => ({ problem }));
    if (!isNext()) return undefined;
    if (found.problem) return view.diffs.replaceChildren(h("p.faint", found.problem.message));
    return view.diffs.replaceChildren(...patchDiffs(found.diff, { cut: found.truncated }),
      found.diff ? "" : h("p.faint", "Nothing is changed."));
  };
  const look = h("details.branch-diff", h("summary", "Show the diff"), view.diffs);
  look.addEventListener("toggle", () => look.open && info && !view.diffs.firstChild && readDiff());
  const merge = actButton("Merge", async () => {
    if (!(await confirmed(`Merge ${info.branch} into ${info.target ?? "its branch"}?`, "Merge"))) return;
    const asked = ask();
    const done = await post(`/worktrees/${info.id}/merge`);
    toast(done.how === "nothing" ? "There was nothing to merge." : `Merged into ${done.into}.`);
    take(done.worktree, asked);
  }, { kind: "primary", title: "Bring its work into the branch it came from" });
  const remove = actButton("Remove", async () => {
    if (!(await confirmed(`Remove ${info.branch} and its directory?`, "Remove"))) return;
    const asked = ask();
    take(await removed(info), asked);
  }, { kind: "danger", title: "Remove the branch and its directory" });
  const keep = h("p.hint", "It is kept until you merge or remove it.");
  const buttons = h("div.form-buttons.acts", merge, remove);
  body.append(
    h("p.branch-line", icon("branch"), view.branch, copyButton(() => info?.branch ?? "", "Copy the branch"),
      view.status, h("span.spacer"), view.stat),
    view.where, view.note, look, buttons, keep);
  const draw = () => {
    say(view.branch, info.branch ?? "a branch of its own");
    view.status.dataset.status = { kept: "live", merged: "done", removed: "cancelled" }[info.status] ?? "pending";
    say(view.status, STATES[info.status] ?? info.status);
    say(view.stat,
      info.files == null ? ""
        : info.files
          ? `${info.files} ${info.files === 1 ? "file" : "files"}, +${info.added ?? "?"} −${info.removed ?? "?"}`
        : "nothing changed");
    say(view.where,
      [info.path, info.target ? `from ${info.target}` : null, info.dirty ? "with changes that are not committed" : null]
        .filter(Boolean)
        .join(" · "));
    view.note.hidden = !info.note;
    say(view.note, info.note ?? "");
    const usable = ["kept", "merged"].includes(info.status);
    look.hidden = !usable;
    merge.disabled = info.status !== "kept";
    remove.disabled = !usable;
    keep.hidden = info.status !== "kept";
  };
  page.whenLeft(stream.on({
    event: ({ kind, payload }) => { if (kind === "worktree_changed" && payload.worktree_id === info?.id) read(); },
  }));
  const show = (task) => {
    if (!task.worktree) return;
    node.hidden = false;
    const state = `${task.worktree.id} ${task.worktree.status} ${task.status} ${task.completed_at}`;
    if (state === shown) return;
    shown = state;
    info = { ...info, ...task.worktree };
    draw();
    if (!["planned", "making", "removed"].includes(info.status)) read();
  };
  return { node, show };
}

async function removed(info) {
  try {
    return await post(`/worktrees/${info.id}/remove`, { force: false });
  } catch (problem) {
    if (problem.status !== 409 ||
        !(await confirmed(`${problem.message} Remove it all the same?`, "Remove and lose it"))) throw problem;
    return post(`/worktrees/${info.id}/remove`, { force: true });
  }
}
