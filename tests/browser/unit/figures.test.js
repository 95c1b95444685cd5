import { dollars, tokens, untoldText, usageText } from "/web/figures.js";
import { each, equal } from "./check.js";

export default {
  "tokens are whole below ten thousand and short above": () => {
    each([[0, "0"], [9999, "9999"], [10000, "10K"], [18240, "18.2K"], [999949, "999.9K"], [999950, "1M"],
      [3100000, "3.1M"], [2500000000, "2.5B"]], tokens);
  },

  "what nobody told is unknown, and nothing is nothing": () => {
    each([[null, "unknown"], [undefined, "unknown"], [0, "0"]], tokens);
    each([[null, "unknown"], [undefined, "unknown"], [0, "$0.00"]], dollars);
  },

  "small sums have four places and large ones two": () => {
    each([[0.0743, "$0.0743"], [0.00004, "$0.0000"], [0.9999, "$0.9999"], [1, "$1.00"], [12.345, "$12.35"]], dollars);
  },

  "usage tells what is known and leaves out the rest": () => {
    each([
      [null, ""], [{}, ""], [{ input_tokens: 0 }, "0 tokens in"], [{ output_tokens: 12000 }, "12K out"],
      [{ cost_usd: 0 }, "$0.00"], [{ model: "large-4" }, "large-4"], [{ model: { name: "<b>" } }, ""],
      [{ input_tokens: 48200, output_tokens: 2904, cost_usd: 0.2113, model: "large-4" },
        "48.2K tokens in · 2904 out · $0.2113 · large-4"],
    ], usageText);
  },

  "sums say what they leave out": () => {
    each([
      [null, ""], [{ tasks: 0, untold: 0, unpriced: 0 }, ""], [{ tasks: 3, untold: 0, unpriced: 0 }, ""],
      [{ tasks: 1, untold: 1, unpriced: 1 }, "of 1 task 1 told nothing"],
      [{ tasks: 4, untold: 0, unpriced: 2 }, "of 4 tasks 2 told no cost"],
      [{ tasks: 4, untold: 1, unpriced: 3 }, "of 4 tasks 1 told nothing and 2 told no cost"],
    ], untoldText);
    equal(untoldText(undefined), "");
  },
};
