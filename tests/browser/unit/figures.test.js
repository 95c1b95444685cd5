import { formatDollars, formatMissingUsage, formatTokens, formatUsage, sumTokens } from "/web/figures.js";
import { each, equal } from "./check.js";

export default {
  "tokens are exact below ten thousand and rounded above": () => {
    each([[0, "0"], [9999, "9999"], [10000, "10K"], [18240, "18.2K"], [999949, "999.9K"], [999950, "1M"],
      [3100000, "3.1M"], [2500000000, "2.5B"]], formatTokens);
  },

  "missing values are unknown, and zero is zero": () => {
    each([[null, "unknown"], [undefined, "unknown"], [0, "0"]], formatTokens);
    each([[null, "unknown"], [undefined, "unknown"], [0, "$0.00"]], formatDollars);
  },

  "the sum of tokens is unknown only if both values are": () => {
    each([[null, null], [{}, null], [{ input_tokens: 0 }, 0], [{ input_tokens: 2, output_tokens: 3 }, 5]], sumTokens);
  },

  "small amounts have four decimal places and large ones two": () => {
    each([[0.0743, "$0.0743"], [0.00004, "$0.0000"], [0.9999, "$0.9999"], [1, "$1.00"], [12.345, "$12.35"]],
      formatDollars);
  },

  "usage shows known values only": () => {
    each([
      [null, ""], [{}, ""], [{ input_tokens: 0 }, "0 tokens in"], [{ output_tokens: 12000 }, "12K out"],
      [{ cost_usd: 0 }, "$0.00"], [{ model: "large-4" }, "large-4"], [{ model: { name: "<b>" } }, ""],
      [{ input_tokens: 48200, output_tokens: 2904, cost_usd: 0.2113, model: "large-4" },
        "48.2K tokens in · 2904 out · $0.2113 · large-4"],
    ], formatUsage);
  },

  "sums report missing values": () => {
    each([
      [null, ""], [{ tasks: 0, untold: 0, unpriced: 0 }, ""], [{ tasks: 3, untold: 0, unpriced: 0 }, ""],
      [{ tasks: 1, untold: 1, unpriced: 1 }, "no usage reported for 1 of 1 task"],
      [{ tasks: 4, untold: 0, unpriced: 2 }, "no cost reported for 2 of 4 tasks"],
      [{ tasks: 4, untold: 1, unpriced: 3 },
        "no usage reported for 1 of 4 tasks; no cost reported for 2 of 4 tasks"],
    ], formatMissingUsage);
    equal(formatMissingUsage(undefined), "");
  },
};
