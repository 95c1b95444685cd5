// Changes to files, as unified patches: coloured, with a head that names the file and counts, folded when long.

import { h } from "./dom.js";
import { copyButton } from "./parts.js";

const SHORT = 30; // lines that are shown without being asked for
const MOST = 2000; // lines that are drawn at all

/** The files of a patch that may hold several: path, patch, added and removed lines. */
export function filesOf(patch) {
  const parts = patch.split(/^(?=diff --git )/m);
  const files = parts.length > 1 || patch.startsWith("diff --git ") ? parts : patch.split(/^(?=--- .*\n\+\+\+ )/m);
  return files.filter((one) => one.trim()).map((one) => ({ path: nameOf(one), patch: one, ...counted(one) }));
}

function nameOf(patch) {
  const name = (found) =>
    (found && found[1] !== "/dev/null" ? found[1].replace(/^"?[ab]\//, "").replace(/"$/, "") : null);
  return name(/^\+\+\+ ([^\t\n]+)/m.exec(patch)) ?? name(/^--- ([^\t\n]+)/m.exec(patch)) ??
    /^diff --git "?a\/(.+?)"? "?b\//m.exec(patch)?.[1] ?? "";
}

const NAMING = /^(diff --git |index |--- |\+\+\+ )/;
const HEAD = /^(diff --git |index |--- |\+\+\+ |(new|deleted) file |(old|new) mode |(dis)?similarity |rename |copy )/;

/** Lines of the head, and what follows it, where a line that looks like a head is none. */
function linesOf(patch) {
  const lines = patch.replace(/\n$/, "").split("\n");
  const hunk = lines.findIndex((line) => line.startsWith("@@"));
  const begin = hunk < 0 ? lines.findIndex((line) => !HEAD.test(line)) : hunk;
  return begin < 0 ? [lines, []] : [lines.slice(0, begin), lines.slice(begin)];
}

function counted(patch) {
  const [, lines] = linesOf(patch);
  const begin = (sign) => lines.filter((line) => line.startsWith(sign)).length;
  return { added: begin("+"), removed: begin("-") };
}

const CLASSES = [
  ["@@", "hunk"], ["new file", "meta"], ["deleted file", "meta"], ["\\", "meta"], ["+", "added"], ["-", "removed"],
];

function lineNode(line) {
  const kind = CLASSES.find(([sign]) => line.startsWith(sign))?.[1];
  return h(`span.line${kind ? `.${kind}` : ""}`, `${line}\n`);
}

/** One file: { path, patch, added, removed, cut }. It opens by itself when it is short. */
export function fileDiff({ path, patch, added, removed, cut }, { open = null } = {}) {
  const [head, changes] = linesOf(patch ?? "");
  const lines = [...head.filter((line) => !NAMING.test(line)), ...changes];
  const body = h("pre.patch", { tabindex: "0", role: "region" });
  body.setAttribute("aria-label", `Changes of ${path || "a file"}`);
  const left = [
    lines.length > MOST ? `${lines.length - MOST} more lines are not drawn` : null,
    cut ? "the patch is cut: its rest is left out" : null,
  ].filter(Boolean).join("; ");
  const node = h("details.diff",
    h("summary", h("code.cut.diff-path", { title: path }, path || "(no name)"), h("span.spacer"),
      h("b.added.num", `+${added ?? 0}`), h("b.removed.num", `−${removed ?? 0}`),
      copyButton(() => patch ?? "", `Copy the patch of ${path || "the file"}`)),
    body, left ? h("p.faint.diff-left", left) : null);
  const draw = () => { if (!body.firstChild) body.append(...lines.slice(0, MOST).map(lineNode)); };
  node.addEventListener("toggle", () => node.open && draw());
  // a click that copies does not unfold
  node.querySelector(".copy").addEventListener("click", (clicked) => clicked.preventDefault());
  if (open ?? lines.length <= SHORT) { draw(); node.open = true; }
  return node;
}

/** A whole patch, file by file. */
export function patchDiffs(patch, { cut = false, open = null } = {}) {
  const files = filesOf(patch ?? "");
  return files.map((one, at) => fileDiff({ ...one, cut: cut && at === files.length - 1 }, { open }));
}
