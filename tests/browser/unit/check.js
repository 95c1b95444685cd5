// What the tests of the modules say: that two values are equal, and what time it is meanwhile.

const format = (value) => JSON.stringify(value, (name, item) => {
  if (item === undefined) return "[undefined]";
  if (typeof item === "number" && !Number.isFinite(item)) return `[${item}]`;
  if (item instanceof Map || item instanceof Set) return [...item];
  const plain = item !== null && typeof item === "object" && !Array.isArray(item);
  return plain ? Object.fromEntries(Object.entries(item).sort(([a], [b]) => (a < b ? -1 : 1))) : item;
});

/** Both hold the same, however deep. */
export function equal(actual, expected, about = "") {
  if (format(actual) === format(expected)) return;
  throw new Error(`${about ? `${about}: ` : ""}expected ${format(expected)}, got ${format(actual)}`);
}

/** Each pair of what is given and what is expected. */
export const each = (pairs, of) => pairs.forEach(([given, expected]) => equal(of(given), expected, format(given)));

/** Do something while this machine's clock stands at a moment. */
export function at(moment, act) {
  const { now } = Date;
  Date.now = () => Date.parse(moment);
  try {
    return act();
  } finally {
    Date.now = now;
  }
}
