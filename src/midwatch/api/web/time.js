// Times that tick by themselves: <mw-elapsed from to>, <mw-ago at> and <mw-left at>. One timer for the whole page.

const ticking = new Set();
let timer = null;
let offset = 0;
let best = -Infinity;

/** The server's time, as well as we know it; what is shown as elapsed must not depend on this machine's clock. */
export const now = () => Date.now() + offset;

/** Learn from an event that has just happened how far this machine's clock is off. The least delayed one tells best. */
export function learnTime(happened) {
  const found = Date.parse(happened) - Date.now();
  best = Math.max(best, found);
  offset = Math.abs(best) > 2500 ? best : 0;
}

/** Seconds as people say them: 4.2 s, 1 m 05 s, 3 h 12 m, 2 d 4 h. */
export function duration(seconds, { fine = false } = {}) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0) seconds = 0;
  if (fine && seconds < 0.0095) return `${Math.max(seconds * 1000, 0).toFixed(1)} ms`;
  if (fine && seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return fine && seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds)} s`;
  const whole = Math.floor(seconds);
  const pad = (number) => String(number).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${pad(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${pad(Math.floor((whole % 3600) / 60))} m`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** A length that was set, without the zeros: 30 m, 12 h, 30 d. */
export const length = (seconds) => duration(seconds).replace(/ 0+ [smh]$/, "");

/** Seconds as they are written, with nothing lost: 90061 is 1d1h1m1s. */
export function span(seconds) {
  let left = Math.round(seconds);
  const parts = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]].map(([unit, size]) => {
    const count = Math.floor(left / size);
    left -= count * size;
    return count ? `${count}${unit}` : "";
  });
  return parts.join("") || "0s";
}

/** How long ago, in one unit. */
export function ago(at) {
  const seconds = (now() - Date.parse(at)) / 1000;
  if (Number.isNaN(seconds)) return "–";
  if (seconds < -1.5) return `in ${coarse(-seconds, Math.round)}`;
  if (seconds < 2) return "just now";
  return `${coarse(seconds)} ago`;
}

function coarse(seconds, whole = Math.floor) {
  if (whole(seconds) < 60) return `${whole(seconds)} s`;
  if (whole(seconds / 60) < 60) return `${whole(seconds / 60)} min`;
  if (whole(seconds / 3600) < 24) return `${whole(seconds / 3600)} h`;
  return `${whole(seconds / 86400)} d`;
}

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const hours = new Intl.DateTimeFormat(undefined,
  { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** Date and time in the reader's zone. */
export const dateTime = (at) => (at ? clock.format(new Date(at)) : "–");
/** Only the time of day. */
export const timeOfDay = (at) => (at ? hours.format(new Date(at)) : "–");

const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const days = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });
/** The time of day, to the minute. */
export const clockTime = (at) => minutes.format(new Date(at));
/** A moment to come: the time of day, with the day where it is not today. */
export const moment = (at) =>
  (at ? `${isToday(at) ? "" : `${days.format(new Date(at))}, `}${minutes.format(new Date(at))}` : "–");

/** Whether `at` is today, where the reader is. */
export const isToday = (at) => new Date(at).toDateString() === new Date(now()).toDateString();

/** When today began here, as the API wants it. */
export function midnight() {
  const day = new Date(now());
  day.setHours(0, 0, 0, 0);
  return day.toISOString();
}

class Ticking extends HTMLElement {
  connectedCallback() {
    this.draw();
    ticking.add(this);
    timer ??= setInterval(tick, 1000);
  }

  disconnectedCallback() {
    ticking.delete(this);
  }

  attributeChangedCallback() {
    if (this.isConnected) this.draw();
  }

  show(text) {
    if (this.textContent !== text) this.textContent = text;
  }
}

class Elapsed extends Ticking {
  static observedAttributes = ["from", "to"];

  draw() {
    const from = this.getAttribute("from");
    if (!from) return this.show("–");
    const to = this.getAttribute("to");
    return this.show(duration(((to ? Date.parse(to) : now()) - Date.parse(from)) / 1000, { fine: Boolean(to) }));
  }
}

class Ago extends Ticking {
  static observedAttributes = ["at"];

  draw() {
    const at = this.getAttribute("at");
    this.show(at ? ago(at) : "–");
    if (at && this.titled !== at) {
      this.titled = at;
      this.title = dateTime(at);
    }
  }
}

/** What is left until a moment, counting down. */
class Left extends Ticking {
  static observedAttributes = ["at"];

  draw() {
    const at = this.getAttribute("at");
    const seconds = (Date.parse(at) - now()) / 1000;
    this.show(!at ? "–" : seconds > 0 ? duration(seconds) : "none");
    if (at && this.titled !== at) {
      this.titled = at;
      this.title = `until ${dateTime(at)}`;
    }
  }
}

function tick() {
  if (document.hidden) return;
  for (const one of ticking) one.draw();
  for (const listener of listeners) listener();
}

const listeners = new Set();

/** Be called once a second while the page is visible. Returns how to stop. */
export function everySecond(listener) {
  listeners.add(listener);
  timer ??= setInterval(tick, 1000);
  return () => listeners.delete(listener);
}

document.addEventListener("visibilitychange", tick);
customElements.define("mw-elapsed", Elapsed);
customElements.define("mw-ago", Ago);
customElements.define("mw-left", Left);
