// What the tests of the modules say: that two values are equal, and what time it is meanwhile.

const shown = (value) => JSON.stringify(value, (name, one) => {
  if (one === undefined) return "[undefined]";
  if (typeof one === "number" && !Number.isFinite(one)) return `[${one}]`;
  if (one instanceof Map || one instanceof Set) return [...one];
  const plain = one !== null && typeof one === "object" && !Array.isArray(one);
  return plain ? Object.fromEntries(Object.entries(one).sort(([a], [b]) => (a < b ? -1 : 1))) : one;
});

/** Both hold the same, however deep. */
export function equal(actual, expected, about = "") {
  if (shown(actual) === shown(expected)) return;
  throw new Error(`${about ? `${about}: ` : ""}expected ${shown(expected)}, got ${shown(actual)}`);
}

/** Each pair of what is given and what is expected. */
export const each = (pairs, of) => pairs.forEach(([given, expected]) => equal(of(given), expected, shown(given)));

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
