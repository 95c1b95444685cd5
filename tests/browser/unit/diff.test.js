import { createCodeList, createFileDiff, createPatchDiffs, splitFiles } from "/web/diff.js";
import { equal } from "./check.js";

const of = (patch) => splitFiles(patch).map(({ path, added, removed }) => [path, added, removed]);
const lines = (patch, more) => [...createFileDiff({ path: "a", patch, ...more },
  { open: true }).querySelectorAll(".line")]
  .map((node) => [node.className.replace(/^line ?/, ""), node.textContent.replace(/\n$/, "")]);
const GIT = `diff --git a/src/one.py b/src/one.py
index 1..2 100644
--- a/src/one.py
+++ b/src/one.py
@@ -1,2 +1,3 @@
 kept
-gone
+new
+newer
`;
const NEW = `diff --git a/new file.txt b/new file.txt
new file mode 100644
--- /dev/null
+++ b/new file.txt
@@ -0,0 +1 @@
+hello
\\ No newline at end of file
`;
const COMMENTS = `--- a/drop.sql
+++ b/drop.sql
@@ -1,3 +1,3 @@
--- all of it
-DROP TABLE gulls;
+++ nothing of it
 SELECT 1;
`;

export default {
  "each file has its name and its counts": () => {
    equal(of(GIT + NEW), [["src/one.py", 2, 1], ["new file.txt", 1, 0]]);
    equal(of("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1 +0,0 @@\n-c\n"),
      [["x", 1, 1], ["y", 0, 1]]);
  },

  "removed, renamed and unusually named files have a name": () => {
    equal(of(NEW.replace("--- /dev/null", "--- a/old.txt").replace("+++ b/new file.txt", "+++ /dev/null"))[0][0],
      "old.txt");
    equal(of("diff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\n"), [["old", 0, 0]]);
    const odd = '"a/t\\303\\244.txt"';
    equal(of(`diff --git ${odd} ${odd}\n--- ${odd}\n+++ ${odd}\n@@ -1 +1 @@\n`)[0][0], "t\\303\\244.txt");
    equal(of("--- a/x\t2026-01-01\n+++ b/x\t2026-01-02\n@@ -1 +1 @@\n+a\n")[0][0], "x");
  },

  "an empty patch has no files": () => {
    equal([of(""), of("\n\n"), createPatchDiffs(null)], [[], [], []]);
  },

  "a line that looks like a header is counted and shown": () => {
    equal(of(COMMENTS), [["drop.sql", 1, 2]]);
    equal(lines(COMMENTS),
      [["hunk", "@@ -1,3 +1,3 @@"], ["removed", "--- all of it"], ["removed", "-DROP TABLE gulls;"],
        ["added", "+++ nothing of it"], ["", " SELECT 1;"]]);
  },

  "the header is hidden, but its information is shown": () => {
    equal(lines(NEW).map(([kind]) => kind), ["meta", "hunk", "added", "meta"]);
  },

  "a patch without hunks is shown": () => {
    equal(lines("-a\n+b\n"), [["removed", "-a"], ["added", "+b"]]);
    equal(lines("--- a/x\n+++ b/x\n-a\n+b"), [["removed", "-a"], ["added", "+b"]]);
    equal(lines("diff --git a/x b/x\nnew file mode 100644\nindex 0..1\n"), [["meta", "new file mode 100644"]]);
  },

  "a short patch is open, and a long one is collapsed and not drawn": () => {
    const long = (count) => createFileDiff({ path: "a", patch: "+x\n".repeat(count) });
    equal([long(30).open, long(31).open, long(31).querySelectorAll(".line").length], [true, false, 0]);
  },

  "hidden and truncated lines are reported": () => {
    const readNote = (node) => node.querySelector(".diff-left")?.textContent;
    equal(readNote(createFileDiff({ path: "a", patch: "+x\n".repeat(2001), cut: true })),
      "1 more lines are not shown; the patch was cut; its end is not shown");
    equal(createPatchDiffs(GIT + NEW, { cut: true }).map(readNote),
      [undefined, "the patch was cut; its end is not shown"]);
  },

  "files that run code are marked, and listed with the reason": () => {
    const code = [{ path: "src/one.py", why: "<i>it is a hook</i>" }, { path: "cut away", why: "x" }];
    equal(createPatchDiffs(GIT + NEW, { code }).map((node) => node.querySelector(".runs-code")?.title),
      ["This file runs code: <i>it is a hook</i>.", undefined]);
    equal([...createCodeList(code).querySelectorAll("li")].map((node) => node.textContent),
      ["src/one.py: <i>it is a hook</i>", "cut away: x"]);
    equal([createCodeList([]), createCodeList(undefined)], [null, null]);
  },

  "names and lines are inserted as text": () => {
    const node = createFileDiff({ path: "<b>x</b>", patch: "@@ -1 +1 @@\n+<img src=x>\n" }, { open: true });
    equal(node.querySelectorAll("img, summary b:not(.num)").length, 0);
    equal(node.querySelector(".line.added").textContent, "+<img src=x>\n");
  },
};
