import { addShortcut } from "/web/keys.js";
import { equal } from "./check.js";

/** Keys that are pressed one after the other. */
function press(keys, { target = document.body, ...more } = {}) {
  for (const key of keys) target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
}

/** What of these shortcuts acts, while something is done. */
function acted(names, act) {
  const heard = [];
  const stops = names.map((name) => addShortcut(name, name, () => { heard.push(name); }));
  act();
  stops.reverse().forEach((stop) => stop());
  return heard;
}

/** Keys with the milliseconds at which they were pressed. */
function timed(...pressed) {
  for (const [key, timeStamp] of pressed) {
    const event = new KeyboardEvent("keydown", { key, bubbles: true });
    document.body.dispatchEvent(Object.defineProperty(event, "timeStamp", { value: timeStamp }));
  }
}

export default {
  "single keys act, and pairs are one": () => {
    equal(acted(["y", "x", "g x", "g y"], () => press(["x", "g", "y", "y"])), ["x", "g y", "y"]);
  },

  "a pair that is none uses both keys up": () => {
    equal(acted(["x", "g y"], () => press(["g", "x", "y", "x"])), ["x"]);
  },

  "keys belong together by the time they were pressed, whatever was pressed before": () => {
    equal(acted(["g y", "g x", "x"], () => timed(["g", 1e6], ["y", 1e6 + 10], ["g", 1e6 + 1490], ["x", 1e6 + 1510])),
      ["g y", "g x"]);
    equal(acted(["g x", "x"], () => timed(["g", 2e6], ["x", 2e6 + 1499], ["g", 3e6], ["x", 3e6 + 1500])), ["g x", "x"]);
  },

  "keys with others held down, and those of a writing system, are not ours": () => {
    equal(acted(["x"], () => {
      for (const held of ["ctrlKey", "metaKey", "altKey", "isComposing"]) press(["x"], { [held]: true });
    }), []);
  },

  "typing is never a shortcut": () => {
    const field = document.createElement("textarea");
    document.body.append(field);
    equal(acted(["x"], () => press(["x"], { target: field })), []);
    field.focus();
    press(["Escape"], { target: field });
    equal(document.activeElement === field, false);
    field.remove();
  },

  "the shortcut of a page gives back what was there before": () => {
    const heard = [];
    const outer = addShortcut("x", "outer", () => { heard.push("outer"); });
    const inner = addShortcut("x", "inner", () => { heard.push("inner"); });
    press(["x"]);
    inner();
    press(["x"]);
    outer();
    press(["x"]);
    equal(heard, ["inner", "outer"]);
  },
};
