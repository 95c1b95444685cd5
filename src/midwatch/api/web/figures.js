// Tokens and money as text. A value that no agent reported is unknown, never zero.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Format a number of tokens: 950, 18.2K, 3.1M. */
export const formatTokens = (count) =>
  (count == null ? "unknown" : count < 10000 ? String(count) : compact.format(count));

/** Add input and output tokens; null if both are unknown. */
export function sumTokens(usage) {
  const { input_tokens: input, output_tokens: output } = usage ?? {};
  return input == null && output == null ? null : (input ?? 0) + (output ?? 0);
}

/** Format dollars, with more decimals for small amounts. */
export const formatDollars = (sum) =>
  (sum == null ? "unknown" : sum && sum < 1 ? `$${sum.toFixed(4)}` : `$${sum.toFixed(2)}`);

/** Format the usage of a turn or a task as far as it was reported; empty if nothing was. */
export function formatUsage(usage) {
  if (!usage) return "";
  const parts = [
    usage.input_tokens == null ? null : `${formatTokens(usage.input_tokens)} tokens in`,
    usage.output_tokens == null ? null : `${formatTokens(usage.output_tokens)} out`,
    usage.cost_usd == null ? null : formatDollars(usage.cost_usd),
    typeof usage.model === "string" ? usage.model : null,
  ];
  return parts.filter(Boolean).join(" · ");
}

/** Return how many tasks did not report their usage or cost; empty if all did. */
export function formatMissingUsage(total) {
  if (!total?.tasks) return "";
  const count = (number) => `${number} of ${total.tasks} ${total.tasks === 1 ? "task" : "tasks"}`;
  return [
    total.untold ? `no usage reported for ${count(total.untold)}` : null,
    total.unpriced > total.untold ? `no cost reported for ${count(total.unpriced - total.untold)}` : null,
  ].filter(Boolean).join("; ");
}
