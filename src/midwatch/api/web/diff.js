// File changes as unified patches: coloured, with a head that has the file name and counts, folded when long.

import { h } from "./dom.js";
import { createCopyButton } from "./parts.js";

const MAX_OPEN_LINES = 30; // a longer diff is folded
const MAX_LINES = 2000; // more lines are not shown

/** Split a patch into its files: path, patch, number of added and removed lines. */
export function splitFiles(patch) {
  const parts = patch.split(/^(?=diff --git )/m);
  const files = parts.length > 1 || patch.startsWith("diff --git ") ? parts : patch.split(/^(?=--- .*\n\+\+\+ )/m);
  return files.filter((part) => part.trim()).map((part) =>
    ({ path: findPath(part), patch: part, ...countLines(part) }));
}

function findPath(patch) {
  const name = (match) =>
    (match && match[1] !== "/dev/null" ? match[1].replace(/^"?[ab]\//, "").replace(/"$/, "") : null);
  return name(/^\+\+\+ ([^\t\n]+)/m.exec(patch)) ?? name(/^--- ([^\t\n]+)/m.exec(patch)) ??
    /^diff --git "?a\/(.+?)"? "?b\//m.exec(patch)?.[1] ?? "";
}

const PATH_LINES = /^(diff --git |index |--- |\+\+\+ )/;
const HEAD = /^(diff --git |index |--- |\+\+\+ |(new|deleted) file |(old|new) mode |(dis)?similarity |rename |copy )/;

/** Split a patch into the lines of its head and the rest, in which no line is a head even if it looks like one. */
function splitLines(patch) {
  const lines = patch.replace(/\n$/, "").split("\n");
  const hunk = lines.findIndex((line) => line.startsWith("@@"));
  const begin = hunk < 0 ? lines.findIndex((line) => !HEAD.test(line)) : hunk;
  return begin < 0 ? [lines, []] : [lines.slice(0, begin), lines.slice(begin)];
}

function countLines(patch) {
  const [, lines] = splitLines(patch);
  const begin = (sign) => lines.filter((line) => line.startsWith(sign)).length;
  return { added: begin("+"), removed: begin("-") };
}

const CLASSES = [
  ["@@", "hunk"], ["new file", "meta"], ["deleted file", "meta"], ["\\", "meta"], ["+", "added"], ["-", "removed"],
];

function createLine(line) {
  const kind = CLASSES.find(([sign]) => line.startsWith(sign))?.[1];
  return h(`span.line${kind ? `.${kind}` : ""}`, `${line}\n`);
}

/** Create the diff of one file: { path, patch, added, removed, cut, why }. A short one is open. `why` says why the file
    runs code when it is used; null for other files. */
export function createFileDiff({ path, patch, added, removed, cut, why }, { open = null } = {}) {
  const [head, changes] = splitLines(patch ?? "");
  const lines = [...head.filter((line) => !PATH_LINES.test(line)), ...changes];
  const body = h("pre.patch", { tabindex: "0", role: "region" });
  body.setAttribute("aria-label", `Changes in ${path || "a file"}`);
  const notes = [
    lines.length > MAX_LINES ? `${lines.length - MAX_LINES} more lines are not shown` : null,
    cut ? "the patch was cut; its end is not shown" : null,
  ].filter(Boolean).join("; ");
  const node = h("details.diff",
    h("summary", h("code.truncate.diff-path", { title: path }, path || "(no name)"),
      why ? h("span.runs-code", { title: `This file runs code: ${why}.` }, "runs code") : null, h("span.spacer"),
      h("b.added.num", `+${added ?? 0}`), h("b.removed.num", `−${removed ?? 0}`),
      createCopyButton(() => patch ?? "", `Copy the patch of ${path || "the file"}`)),
    body, notes ? h("p.faint.diff-left", notes) : null);
  const draw = () => { if (!body.firstChild) body.append(...lines.slice(0, MAX_LINES).map(createLine)); };
  node.addEventListener("toggle", () => node.open && draw());
  // a click on the copy button must not open the diff
  node.querySelector(".copy").addEventListener("click", (clicked) => clicked.preventDefault());
  if (open ?? lines.length <= MAX_OPEN_LINES) { draw(); node.open = true; }
  return node;
}

/** Create the diffs of a whole patch, file by file. `code` has the files that run code: { path, why }. */
export function createPatchDiffs(patch, { cut = false, open = null, code = [] } = {}) {
  const files = splitFiles(patch ?? "");
  const reasons = new Map(code.map(({ path, why }) => [path, why]));
  return files.map((file, at) =>
    createFileDiff({ ...file, cut: cut && at === files.length - 1, why: reasons.get(file.path) }, { open }));
}

/** Create the list of the changed files that run code, or null if there are none. */
export function createCodeList(code) {
  if (!code?.length) return null;
  return h("div.code-list", { role: "note" },
    h("p.warn-text", "These changed files run code when they are used. Read them before you merge:"),
    h("ul", code.map(({ path, why }) => h("li", h("code", path), `: ${why}`))));
}
