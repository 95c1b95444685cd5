import {
  formatAgo, formatClock, formatDateTime, formatDuration, formatInterval, formatMoment, formatPeriod, formatTime,
  getMidnight, isToday,
} from "/web/time.js";
import { at, each, equal } from "./check.js";

/** Load the module in a separate document, because it stores the clock difference. */
async function loadSeparately() {
  const frame = document.createElement("iframe");
  document.body.append(frame);
  const time = await frame.contentWindow.eval('import("/web/time.js")');
  const { Date: clock } = frame.contentWindow;
  clock.now = () => Date.parse("2026-01-01T12:00:00Z");
  const learn = (text) => { time.syncClock(text); return new Date(time.now()).toISOString().slice(11, 19); };
  return { learn, done: () => frame.remove() };
}

export default {
  "durations have the usual units": () => {
    each([[0, "0 s"], [0.9, "0 s"], [59.99, "59 s"], [60, "1 m 00 s"], [65, "1 m 05 s"], [3599.9, "59 m 59 s"],
      [3600, "1 h 00 m"], [86399, "23 h 59 m"], [86400, "1 d 0 h"], [187200, "2 d 4 h"]],
        (given) => formatDuration(given));
  },

  "an unknown duration is a dash, and none is below zero": () => {
    each([[null, "–"], [undefined, "–"], [NaN, "–"], [-5, "0 s"]], (given) => formatDuration(given));
    equal(formatDuration(-0.2, { fine: true }), "0.0 ms");
  },

  "fine durations never reach a thousand of a unit": () => {
    each([[0.0004, "0.4 ms"], [0.00949, "9.5 ms"], [0.0095, "10 ms"], [0.4, "400 ms"], [0.9994, "999 ms"],
      [0.9996, "1.0 s"], [1, "1.0 s"], [9.94, "9.9 s"], [10.6, "10 s"], [61.5, "1 m 01 s"]],
    (given) => formatDuration(given, { fine: true }));
  },

  "configured durations are shown without zeros": () => {
    each([[0, "0 s"], [30, "30 s"], [600, "10 m"], [630, "10 m 30 s"], [36000, "10 h"], [43260, "12 h 01 m"],
      [86400, "1 d"], [864000, "10 d"], [90000, "1 d 1 h"]], formatPeriod);
  },

  "periods are exact and repeat no unit": () => {
    each([[0, "0s"], [0.4, "0s"], [59.6, "1m"], [3600, "1h"], [3601, "1h1s"], [90061, "1d1h1m1s"], [864000, "10d"]],
      formatInterval);
  },

  "past times have one unit, and future times are rounded": () => {
    at("2026-01-02T12:00:00Z", () => each([
      ["2026-01-02T12:00:00Z", "just now"], ["2026-01-02T11:59:58.1Z", "just now"], ["2026-01-02T11:59:58Z", "2 s ago"],
      ["2026-01-02T11:59:00.1Z", "59 s ago"], ["2026-01-02T11:59:00Z", "1 min ago"],
      ["2026-01-02T11:00:01Z", "59 min ago"], ["2026-01-01T12:00:01Z", "23 h ago"], ["2026-01-01T12:00:00Z", "1 d ago"],
      ["2026-01-02T12:00:01.4Z", "just now"], ["2026-01-02T12:00:59.6Z", "in 1 min"],
      ["2026-01-02T12:59:40Z", "in 1 h"], ["2026-01-03T11:40:00Z", "in 1 d"], ["no time", "–"],
    ], formatAgo));
  },

  "today begins at local midnight, also on days when the clock changes": () => {
    each([["2026-03-29T00:30:00Z", "2026-03-28T23:00:00.000Z"], ["2026-03-29T20:00:00Z", "2026-03-28T23:00:00.000Z"],
      ["2026-03-29T22:00:00Z", "2026-03-29T22:00:00.000Z"], ["2026-10-25T22:59:59Z", "2026-10-24T22:00:00.000Z"],
      ["2026-10-25T23:00:00Z", "2026-10-25T23:00:00.000Z"]], (given) => at(given, getMidnight));
  },

  "today is decided in the reader's time zone": () => {
    at("2026-06-30T22:30:00Z", () => {
      equal(isToday("2026-06-30T21:59:59Z"), false);
      equal(isToday("2026-06-30T22:00:00Z"), true);
      equal(isToday("2026-07-01T21:59:59Z"), true);
      equal(isToday("2026-07-01T22:00:00Z"), false);
    });
  },

  "a time shows its date unless it is today": () => {
    at("2026-07-01T10:00:00Z", () => {
      equal(formatMoment("2026-07-01T20:05:00Z"), "22:05");
      equal(formatMoment("2026-07-01T22:05:00Z").endsWith(", 00:05"), true);
      equal(formatMoment(null), "–");
    });
  },

  "the hour after midnight is 00, not 24": () => {
    equal(formatTime("2026-07-01T22:05:09Z"), "00:05:09");
    equal(formatClock("2026-07-01T22:05:09Z"), "00:05");
  },

  "an hour that occurs twice is shown twice": () => {
    equal([formatClock("2026-10-25T00:30:00Z"), formatClock("2026-10-25T01:30:00Z")], ["02:30", "02:30"]);
    equal(formatClock("2026-03-29T01:00:00Z"), "03:00");
  },

  "a missing time is a dash": () =>
    each([[null, "–"], ["", "–"], [undefined, "–"]], (given) => formatDateTime(given) && formatTime(given)),

  "the server's clock is derived from the event with the least delay": async () => {
    const { learn, done } = await loadSeparately();
    equal(learn("2026-01-01T11:00:00Z"), "11:00:00"); // an hour behind, as far as is known
    equal(learn("2026-01-01T10:00:00Z"), "11:00:00"); // that one was late
    equal(learn("2026-01-01T13:00:00Z"), "13:00:00");
    equal(learn("2026-01-01T12:59:00Z"), "13:00:00");
    done();
  },

  "a nearly correct clock is not adjusted": async () => {
    const { learn, done } = await loadSeparately();
    equal(learn("2026-01-01T11:59:57Z"), "11:59:57");
    equal(learn("2026-01-01T11:59:58Z"), "12:00:00");
    equal(learn("2026-01-01T12:00:02Z"), "12:00:00");
    done();
  },
};
