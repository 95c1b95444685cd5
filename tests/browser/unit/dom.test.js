import { createRequestKey, getFirstLine, h, renderKeyed, setProps, setText, svg } from "/web/dom.js";
import { each, equal } from "./check.js";

/** Return a function that draws a list and returns its texts and the created nodes. */
function drawing() {
  const [list, created] = [h("ul"), []];
  const draw = (...names) => {
    renderKeyed(list, names, (name) => name, (name) => { created.push(name); return h("li", name); });
    return [...list.children].map((node) => node.textContent).join("");
  };
  return { list, created, draw };
}

export default {
  "elements have classes, properties, attributes and children": () => {
    const node = h("button.a.b",
      { type: "button", class: "c  d", data: { kind: "x" }, "aria-label": "y", hidden: true },
      "text", [null, false, undefined, ["deep", 0]]);
    equal(node.outerHTML,
      '<button class="a b c d" type="button" data-kind="x" aria-label="y" hidden="">textdeep0</button>');
    equal(h(".only", 5).outerHTML, '<div class="only">5</div>');
  },

  "text is never parsed as HTML": () => equal(h("p", "<b>&amp;</b>").innerHTML, "&lt;b&gt;&amp;amp;&lt;/b&gt;"),

  "an empty attribute is removed": () => {
    const node = svg("rect", { x: 1, role: "img" });
    setProps(node, { x: 0, role: null });
    equal(node.outerHTML, '<rect x="0"></rect>');
    equal(setProps(h("a"), { "aria-current": true }).getAttribute("aria-current"), "");
  },

  "event handlers are called": () => {
    let heard = 0;
    h("button", { onclick: () => { heard++; } }).click();
    equal(heard, 1);
  },

  "text is written only if it differs": () => {
    const node = h("p", "a");
    const text = node.firstChild;
    equal(setText(setText(node, "a"), "a").firstChild === text, true);
    equal([setText(node, null).textContent, setText(node, 0).textContent], ["", "0"]);
  },

  "a list follows its items and keeps the nodes of remaining items": () => {
    const { list, created, draw } = drawing();
    equal(draw("a", "b", "c"), "abc");
    const [a, , c] = list.children;
    equal(draw("c", "x", "a"), "cxa");
    equal([list.children[0] === c, list.children[2] === a, created.join("")], [true, true, "abcx"]);
    equal([draw(), draw("a"), created.join("")], ["", "a", "abcxa"]);
  },

  "a duplicate key makes one node": () => {
    const { draw, list } = drawing();
    draw("a", "b", "a");
    equal(list.children.length, 2);
  },

  "the first line is trimmed and truncated between characters": () => {
    each([[null, ""], ["", ""], ["\n \n", ""], ["  a b \n c", "a b "], ["x".repeat(160), "x".repeat(160)]],
      (text) => getFirstLine(text));
    equal(getFirstLine("abcdef", 4), "abc…");
    equal([getFirstLine("ab😀cd", 4), getFirstLine("a😀😀😀", 5)], ["ab…", "a😀…"]);
  },

  "request keys are unique": () => {
    const keys = Array.from({ length: 50 }, createRequestKey);
    equal([new Set(keys).size, keys.every((key) => /^[0-9a-f]{32}$/.test(key))], [50, true]);
  },
};
