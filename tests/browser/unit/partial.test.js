import { grow, Partial } from "/web/partial.js";
import { equal } from "./check.js";

/** What stands there after the pieces, what each changed, and how often the whole was asked for. */
function after(...pieces) {
  let requests = 0;
  const partial = new Partial(() => { requests++; });
  const changed = pieces.map(([message_id, offset, text]) => partial.add({ message_id, offset, text }));
  return { text: partial.text, changed, requests };
}

export default {
  "pieces are put together": () => {
    equal(after(["m", 0, "Hello "], ["m", 6, "there"]), { text: "Hello there", changed: [true, true], requests: 0 });
  },

  "offsets count characters though some take two units": () => {
    equal(after(["m", 0, "a😀"], ["m", 2, "b"], ["m", 3, "👩‍🚀"], ["m", 6, "!"]).text, "a😀b👩‍🚀!");
  },

  "a piece that comes twice changes nothing": () => {
    equal(after(["m", 0, "one "], ["m", 0, "one "], ["m", 4, ""]),
      { text: "one ", changed: [true, false, false], requests: 0 });
  },

  "of a piece that overlaps only what is new is taken": () => {
    equal(after(["m", 0, "😀😀a"], ["m", 1, "😀ab"]), { text: "😀😀ab", changed: [true, true], requests: 0 });
  },

  "a gap asks for the whole and is not written over": () => {
    equal(after(["m", 0, "one"], ["m", 5, "six"]), { text: "one", changed: [true, false], requests: 1 });
    equal(after(["m", 3, "late"]), { text: "", changed: [false], requests: 1 });
  },

  "another message begins anew": () => {
    equal(after(["m", 0, "one"], ["n", 0, "two"]), { text: "two", changed: [true, true], requests: 0 });
    equal(after(["m", 0, "one"], ["n", 2, "two"]), { text: "one", changed: [true, false], requests: 1 });
  },

  "an answer that is older than what is here is not taken": () => {
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

  "text grows in its node, and is replaced where it does not continue": () => {
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
