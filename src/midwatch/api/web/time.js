// Times that update themselves: <mw-elapsed from to>, <mw-ago at> and <mw-left at>. One timer for the whole page.

const ticking = new Set();
let timer = null;
let offset = 0;
let best = -Infinity;

/** Return the estimated time of the server, so that shown times do not depend on the clock of this computer. */
export const now = () => Date.now() + offset;

/** Estimate from a new event how far the local clock is off. The event with the least delay is the most exact. */
export function syncClock(happened) {
  const difference = Date.parse(happened) - Date.now();
  best = Math.max(best, difference);
  offset = Math.abs(best) > 2500 ? best : 0;
}

/** Format seconds: 4.2 s, 1 m 05 s, 3 h 12 m, 2 d 4 h. */
export function formatDuration(seconds, { fine = false } = {}) {
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

/** Format a configured number of seconds, without zeros: 30 m, 12 h, 30 d. */
export const formatPeriod = (seconds) => formatDuration(seconds).replace(/ 0+ [smh]$/, "");

/** Format seconds exactly, as users type them: 90061 is 1d1h1m1s. */
export function formatInterval(seconds) {
  let left = Math.round(seconds);
  const parts = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]].map(([unit, size]) => {
    const count = Math.floor(left / size);
    left -= count * size;
    return count ? `${count}${unit}` : "";
  });
  return parts.join("") || "0s";
}

/** Format how long ago a time was, in one unit. */
export function formatAgo(at) {
  const seconds = (now() - Date.parse(at)) / 1000;
  if (Number.isNaN(seconds)) return "–";
  if (seconds < -1.5) return `in ${formatCoarse(-seconds, Math.round)}`;
  if (seconds < 2) return "just now";
  return `${formatCoarse(seconds)} ago`;
}

function formatCoarse(seconds, whole = Math.floor) {
  if (whole(seconds) < 60) return `${whole(seconds)} s`;
  if (whole(seconds / 60) < 60) return `${whole(seconds / 60)} min`;
  if (whole(seconds / 3600) < 24) return `${whole(seconds / 3600)} h`;
  return `${whole(seconds / 86400)} d`;
}

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const hours = new Intl.DateTimeFormat(undefined,
  { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

/** Format date and time in the local time zone. */
export const formatDateTime = (at) => (at ? clock.format(new Date(at)) : "–");
/** Format the time of day. */
export const formatTime = (at) => (at ? hours.format(new Date(at)) : "–");

const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
const days = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });
/** Format the time of day without seconds. */
export const formatClock = (at) => minutes.format(new Date(at));
/** Format a time without seconds, with the day if it is not today. */
export const formatMoment = (at) =>
  (at ? `${isToday(at) ? "" : `${days.format(new Date(at))}, `}${minutes.format(new Date(at))}` : "–");

/** Return whether a time is today in the local time zone. */
export const isToday = (at) => new Date(at).toDateString() === new Date(now()).toDateString();

/** Return the start of today in the local time zone, in ISO format. */
export function getMidnight() {
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
    return this.show(formatDuration(((to ? Date.parse(to) : now()) - Date.parse(from)) / 1000, { fine: Boolean(to) }));
  }
}

class Ago extends Ticking {
  static observedAttributes = ["at"];

  draw() {
    const at = this.getAttribute("at");
    this.show(at ? formatAgo(at) : "–");
    if (at && this.titled !== at) {
      this.titled = at;
      this.title = formatDateTime(at);
    }
  }
}

/** Counts down the time until a moment. */
class Remaining extends Ticking {
  static observedAttributes = ["at"];

  draw() {
    const at = this.getAttribute("at");
    const seconds = (Date.parse(at) - now()) / 1000;
    this.show(!at ? "–" : seconds > 0 ? formatDuration(seconds) : "none");
    if (at && this.titled !== at) {
      this.titled = at;
      this.title = `until ${formatDateTime(at)}`;
    }
  }
}

function tick() {
  if (document.hidden) return;
  for (const element of ticking) element.draw();
  for (const listener of listeners) listener();
}

const listeners = new Set();

/** Call a listener once a second while the page is visible. Returns a function that stops it. */
export function callEverySecond(listener) {
  listeners.add(listener);
  timer ??= setInterval(tick, 1000);
  return () => listeners.delete(listener);
}

document.addEventListener("visibilitychange", tick);
customElements.define("mw-elapsed", Elapsed);
customElements.define("mw-ago", Ago);
customElements.define("mw-left", Remaining);
