import { grow, Partial } from "/web/partial.js";
import { equal } from "./check.js";

/** Return the text after the pieces, whether each changed it, and how often the whole text was requested. */
function after(...pieces) {
  let requests = 0;
  const partial = new Partial(() => { requests++; });
  const changed = pieces.map(([message_id, offset, text]) => partial.add({ message_id, offset, text }));
  return { text: partial.text, changed, requests };
}

export default {
  "pieces are joined": () => {
    equal(after(["m", 0, "Hello "], ["m", 6, "there"]), { text: "Hello there", changed: [true, true], requests: 0 });
  },

  "offsets count characters, also those of two code units": () => {
    equal(after(["m", 0, "a😀"], ["m", 2, "b"], ["m", 3, "👩‍🚀"], ["m", 6, "!"]).text, "a😀b👩‍🚀!");
  },

  "a duplicate piece changes nothing": () => {
    equal(after(["m", 0, "one "], ["m", 0, "one "], ["m", 4, ""]),
      { text: "one ", changed: [true, false, false], requests: 0 });
  },

  "only the new part of an overlapping piece is added": () => {
    equal(after(["m", 0, "😀😀a"], ["m", 1, "😀ab"]), { text: "😀😀ab", changed: [true, true], requests: 0 });
  },

  "a gap requests the whole text and adds nothing": () => {
    equal(after(["m", 0, "one"], ["m", 5, "six"]), { text: "one", changed: [true, false], requests: 1 });
    equal(after(["m", 3, "late"]), { text: "", changed: [false], requests: 1 });
  },

  "another message starts with an empty text": () => {
    equal(after(["m", 0, "one"], ["n", 0, "two"]), { text: "two", changed: [true, true], requests: 0 });
    equal(after(["m", 0, "one"], ["n", 2, "two"]), { text: "one", changed: [true, false], requests: 1 });
  },

  "an older whole text is ignored": () => {
    const partial = new Partial();
    partial.add({ message_id: "m", offset: 0, text: "one two" });
    equal(partial.replace({ message_id: "m", text: "one" }), false);
    equal(partial.text, "one two");
    equal(partial.replace({ message_id: "m", text: "one two three 😀" }), true);
    equal(partial.add({ message_id: "m", offset: 15, text: "!" }), true);
    equal(partial.text, "one two three 😀!");
    equal(partial.replace({ message_id: "n", text: "" }), true);
    equal([partial.id, partial.text], ["n", ""]);
  },

  "text is appended to its node, and replaced if it does not continue": () => {
    const node = document.createElement("p");
    grow(node, "one");
    const text = node.firstChild;
    grow(node, "one two");
    equal([node.textContent, node.firstChild === text], ["one two", true]);
    grow(node, "other");
    equal([node.textContent, node.childNodes.length], ["other", 1]);
    node.append(document.createElement("b"));
    grow(node, "other one");
    equal(node.innerHTML, "other one");
  },
};
