// Tokens and money as people read them. What nobody told is unknown, never nothing.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** A number of tokens, short: 950, 18.2K, 3.1M. */
export const tokens = (count) => (count == null ? "unknown" : count < 10000 ? String(count) : compact.format(count));

/** Dollars, with the places that small sums need. */
export const dollars = (sum) =>
  (sum == null ? "unknown" : sum && sum < 1 ? `$${sum.toFixed(4)}` : `$${sum.toFixed(2)}`);

/** What a turn or a task used, as far as it was told; nothing when nothing was. */
export function usageText(usage) {
  if (!usage) return "";
  const known = [
    usage.input_tokens == null ? null : `${tokens(usage.input_tokens)} tokens in`,
    usage.output_tokens == null ? null : `${tokens(usage.output_tokens)} out`,
    usage.cost_usd == null ? null : dollars(usage.cost_usd),
    typeof usage.model === "string" ? usage.model : null,
  ];
  return known.filter(Boolean).join(" · ");
}

/** What sums leave out, in words; nothing when they are whole. */
export function untoldText(total) {
  if (!total?.tasks) return "";
  const said = [
    total.untold ? `${total.untold} told nothing` : null,
    total.unpriced > total.untold ? `${total.unpriced - total.untold} told no cost` : null,
  ].filter(Boolean);
  return said.length ? `of ${total.tasks} ${total.tasks === 1 ? "task" : "tasks"} ${said.join(" and ")}` : "";
}
