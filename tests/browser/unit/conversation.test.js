import { mergeSteps } from "/web/conversation.js";
import { equal } from "./check.js";

const message = (number, time) => ({ number, time });
const step = (key, time, more) => ({ key, time, kind: "tool", ...more });
const shown = (messages, steps) =>
  mergeSteps(messages, steps).map((entry) =>
    (entry.steps ? entry.steps.map((each) => each.key).join("+") : entry.number));

export default {
  "steps are placed between messages, and consecutive steps form one group": () => {
    equal(shown([message(1, "01"), message(2, "05")], [step("a", "02"), step("b", "03"), step("c", "06")]),
      [1, "a+b", 2, "c"]);
  },

  "a step of the same time is placed after its message": () => {
    equal(shown([message(1, "01"), message(2, "02")], [step("a", "01"), step("b", "02")]), [1, "a", 2, "b"]);
  },

  "messages alone and steps alone are shown": () => {
    equal([shown([], []), shown([message(1, "01")], []), shown([], [step("a", "01")])], [[], [1], ["a"]]);
  },

  "steps before the first loaded message are hidden unless it is the first of all": () => {
    const steps = [step("a", "01"), step("b", "06")];
    equal(shown([message(9, "05")], steps), [9, "b"]);
    equal(shown([message(1, "05")], steps), ["a", 1, "b"]);
  },

  "the end of a turn is shown only if it has information": () => {
    const turn = (key, more) => step(key, "02", { kind: "turn", tools: 0, usage: null, ...more });
    equal(shown([message(1, "01")], [turn("a"), turn("b", { tools: 1 }), turn("c", { usage: { cost_usd: 0 } })]),
      [1, "b+c"]);
  },

  "groups of steps keep their key while they grow": () => {
    const keys = (steps) => mergeSteps([message(1, "01")], steps).map((entry) => entry.key ?? entry.number);
    equal(keys([step("a", "02")]), keys([step("a", "02"), step("b", "03")]));
  },
};
