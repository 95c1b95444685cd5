// Functions for the tests of modules: compare values, and set the clock.

const format = (value) => JSON.stringify(value, (name, item) => {
  if (item === undefined) return "[undefined]";
  if (typeof item === "number" && !Number.isFinite(item)) return `[${item}]`;
  if (item instanceof Map || item instanceof Set) return [...item];
  const plain = item !== null && typeof item === "object" && !Array.isArray(item);
  return plain ? Object.fromEntries(Object.entries(item).sort(([a], [b]) => (a < b ? -1 : 1))) : item;
});

/** Check that two values are deeply equal. */
export function equal(actual, expected, about = "") {
  if (format(actual) === format(expected)) return;
  throw new Error(`${about ? `${about}: ` : ""}expected ${format(expected)}, got ${format(actual)}`);
}

/** Check each pair of an argument and the expected result. */
export const each = (pairs, of) => pairs.forEach(([given, expected]) => equal(of(given), expected, format(given)));

/** Call a function while the clock of the page is fixed. */
export function at(moment, act) {
  const { now } = Date;
  Date.now = () => Date.parse(moment);
  try {
    return act();
  } finally {
    Date.now = now;
  }
}
