// The worktree of a task: its branch, changes and diff, with buttons to merge and remove it.

import { get, post, trackRequests } from "./api.js";
import { h, setText } from "./dom.js";
import { icon } from "./icons.js";
import { confirmAction, createActionButton, createCopyButton, createPanel, showToast } from "./parts.js";
import { stream } from "./stream.js";
import { createCodeList, createPatchDiffs } from "./diff.js";

const STATES = {
  planned: "created when the task starts", making: "being created", kept: "kept", merged: "merged", removed: "removed",
};

/** Create the panel. `show(task)` updates it. */
export function createWorktreePanel(page) {
  const { node, body } = createPanel("Worktree", { name: "worktree" });
  node.hidden = true;
  body.classList.add("padded");
  const view = {
    branch: h("code"), status: h("span.status"), stat: h("span.num"), where: h("p.faint.plain-text"),
    note: h("p.warn-text.plain-text", { hidden: true }), diffs: h("div.diffs"),
  };
  let info = null;
  let drawnState = null;
  const startRequest = trackRequests();
  const startDiffRequest = trackRequests();
  const update = (worktree, { accept }) => { if (accept()) { info = worktree; draw(); } };
  const read = async () => {
    const request = startRequest();
    const worktree = await get(`/worktrees/${info.id}`).catch(() => null);
    if (!worktree || !request.accept()) return;
    info = worktree;
    draw();
    if (details.open && !details.hidden) await readDiff();
  };
  const readDiff = async () => {
    const { accept } = startDiffRequest();
    const reply = await get(`/worktrees/${info.id}/diff?limit=1000000`).catch((problem) => ({ problem }));
    if (!accept()) return undefined;
    if (reply.problem) return view.diffs.replaceChildren(h("p.faint", reply.problem.message));
    const code = reply.runs_code;
    return view.diffs.replaceChildren(createCodeList(code) ?? "",
      ...createPatchDiffs(reply.diff, { cut: reply.truncated, code }), reply.diff ? "" : h("p.faint", "No changes."));
  };
  const details = h("details.branch-diff", h("summary", "Show the diff"), view.diffs);
  details.addEventListener("toggle", () => details.open && info && !view.diffs.firstChild && readDiff());
  const merge = createActionButton("Merge", async () => {
    const { runs_code: code = [] } = await get(`/worktrees/${info.id}/diff?limit=1`).catch(() => ({}));
    const warning = code.length ? ` These changed files run code: ${code.map(({ path }) => path).join(", ")}.` : "";
    const hooked = hooks.checked ? " The hooks of the repository run outside of every sandbox." : "";
    const question = `Merge ${info.branch} into ${info.target ?? "its original branch"}?${warning}${hooked}`;
    if (!(await confirmAction(question, "Merge"))) return;
    const request = startRequest();
    const done = await post(`/worktrees/${info.id}/merge`, { hooks: hooks.checked });
    showToast(done.how === "nothing" ? "There is nothing to merge." : `Merged into ${done.into}.`);
    update(done.worktree, request);
  }, { kind: "primary", title: "Merge the changes into the original branch" });
  const remove = createActionButton("Remove", async () => {
    if (!(await confirmAction(`Remove ${info.branch} and its directory?`, "Remove"))) return;
    const request = startRequest();
    update(await removeWorktree(info), request);
  }, { kind: "danger", title: "Remove the branch and its directory" });
  const hooks = h("input", { type: "checkbox", name: "hooks" });
  const hooksLabel = h("label.check", {
    title: "The hooks run outside of every sandbox. Read changed hooks before you allow them.",
  }, hooks, "Run the git hooks of the repository at the merge");
  const keep = h("p.hint", "The worktree is kept until you merge or remove it.");
  const buttons = h("div.form-buttons.action", merge, hooksLabel, remove);
  body.append(
    h("p.branch-line", icon("branch"), view.branch, createCopyButton(() => info?.branch ?? "", "Copy the branch name"),
      view.status, h("span.spacer"), view.stat),
    view.where, view.note, details, buttons, keep);
  const draw = () => {
    setText(view.branch, info.branch ?? "new branch");
    view.status.dataset.status = { kept: "live", merged: "done", removed: "cancelled" }[info.status] ?? "pending";
    setText(view.status, STATES[info.status] ?? info.status);
    setText(view.stat,
      info.files == null ? ""
        : info.files
          ? `${info.files} ${info.files === 1 ? "file" : "files"}, +${info.added ?? "?"} −${info.removed ?? "?"}`
        : "no changes");
    setText(view.where,
      [info.path, info.target ? `from ${info.target}` : null, info.dirty ? "uncommitted changes" : null]
        .filter(Boolean)
        .join(" · "));
    view.note.hidden = !info.note;
    setText(view.note, info.note ?? "");
    const usable = ["kept", "merged"].includes(info.status);
    details.hidden = !usable;
    merge.disabled = info.status !== "kept";
    hooksLabel.hidden = merge.disabled;
    remove.disabled = !usable;
    keep.hidden = info.status !== "kept";
  };
  page.onLeave(stream.on({
    event: ({ kind, payload }) => { if (kind === "worktree_changed" && payload.worktree_id === info?.id) read(); },
  }));
  const show = (task) => {
    if (!task.worktree) return;
    node.hidden = false;
    const state = `${task.worktree.id} ${task.worktree.status} ${task.status} ${task.completed_at}`;
    if (state === drawnState) return;
    drawnState = state;
    info = { ...info, ...task.worktree };
    draw();
    if (!["planned", "making", "removed"].includes(info.status)) read();
  };
  return { node, show };
}

async function removeWorktree(info) {
  try {
    return await post(`/worktrees/${info.id}/remove`, { force: false });
  } catch (problem) {
    if (problem.status !== 409 ||
        !(await confirmAction(`${problem.message} Remove it anyway?`, "Remove and discard"))) throw problem;
    return post(`/worktrees/${info.id}/remove`, { force: true });
  }
}
