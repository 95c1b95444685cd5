import { addShortcut } from "/web/keys.js";
import { equal } from "./check.js";

/** Press keys one after the other. */
function press(keys, { target = document.body, ...more } = {}) {
  for (const key of keys) target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
}

/** Return the shortcuts that were triggered by `act`. */
function run(names, act) {
  const triggered = [];
  const stops = names.map((name) => addShortcut(name, name, () => { triggered.push(name); }));
  act();
  stops.reverse().forEach((stop) => stop());
  return triggered;
}

/** Press keys at the given milliseconds. */
function pressAt(...pressed) {
  for (const [key, timeStamp] of pressed) {
    const event = new KeyboardEvent("keydown", { key, bubbles: true });
    document.body.dispatchEvent(Object.defineProperty(event, "timeStamp", { value: timeStamp }));
  }
}

export default {
  "single keys and pairs of keys are shortcuts": () => {
    equal(run(["y", "x", "g x", "g y"], () => press(["x", "g", "y", "y"])), ["x", "g y", "y"]);
  },

  "an unknown pair consumes both keys": () => {
    equal(run(["x", "g y"], () => press(["g", "x", "y", "x"])), ["x"]);
  },

  "keys form a pair by the times at which they were pressed": () => {
    equal(run(["g y", "g x", "x"], () => pressAt(["g", 1e6], ["y", 1e6 + 10], ["g", 1e6 + 1490], ["x", 1e6 + 1510])),
      ["g y", "g x"]);
    equal(run(["g x", "x"], () => pressAt(["g", 2e6], ["x", 2e6 + 1499], ["g", 3e6], ["x", 3e6 + 1500])), ["g x", "x"]);
  },

  "keys with modifiers and keys of an input method are ignored": () => {
    equal(run(["x"], () => {
      for (const held of ["ctrlKey", "metaKey", "altKey", "isComposing"]) press(["x"], { [held]: true });
    }), []);
  },

  "typing in a field is never a shortcut": () => {
    const field = document.createElement("textarea");
    document.body.append(field);
    equal(run(["x"], () => press(["x"], { target: field })), []);
    field.focus();
    press(["Escape"], { target: field });
    equal(document.activeElement === field, false);
    field.remove();
  },

  "removing a page's shortcut restores the earlier one": () => {
    const triggered = [];
    const outer = addShortcut("x", "outer", () => { triggered.push("outer"); });
    const inner = addShortcut("x", "inner", () => { triggered.push("inner"); });
    press(["x"]);
    inner();
    press(["x"]);
    outer();
    press(["x"]);
    equal(triggered, ["inner", "outer"]);
  },
};
