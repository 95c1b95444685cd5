// The one event stream of the page: every stored event once and in order, across lost connections and restarts.
//
// Listeners get: event(event), live(event), state(data), reset(), status(name). After a lost connection the server
// sends the missed events (Last-Event-ID), then the state, then new events. `reset` means that events are lost (pruned,
// or another store) and that everything shown must be loaded again.

import { redirectToSignIn } from "./api.js";
import { API_ROOT, singleSession } from "./place.js";
import { now, syncClock } from "./time.js";

const FIRST_PAUSE = 400;
const LONGEST_PAUSE = 15000;
const SILENCE = 40000; // the server sends something every 15 s
const FIRST_STATE = 3000; // milliseconds that a page waits for the first state at most
const NEWER_TABS = 3; // browsers allow six connections per host, over all tabs

/** Read the frames of a reply, one after the other. */
export async function* readFrames(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const frame = parseFrame(text.slice(0, end));
        text = text.slice(end + 2);
        yield frame;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseFrame(text) {
  const frame = { id: null, name: "message", data: null };
  const data = [];
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") data.push(value);
    else if (field === "id") frame.id = Number(value);
    else if (field === "event") frame.name = value;
  }
  if (data.length) frame.data = JSON.parse(data.join("\n"));
  return frame;
}

/** Load the current state of a task or session, with unfinished text: the first frame of a stream. */
export async function loadSnapshot(filter, signal) {
  signal?.throwIfAborted();
  const stop = new AbortController();
  signal?.addEventListener("abort", () => stop.abort(), { once: true });
  const address = `${API_ROOT}/events?${new URLSearchParams({ ...filter, state: "true", live: "true" })}`;
  const reply = await fetch(address, { signal: stop.signal, headers: { accept: "text/event-stream" } });
  if (!reply.ok) throw new Error(`The server replied with status ${reply.status}. Reload the page.`);
  try {
    for await (const frame of readFrames(reply)) if (frame.name === "state") return frame.data;
  } finally {
    stop.abort();
  }
  throw new Error("The connection closed before the state arrived. Reload the page.");
}

class Stream {
  status = "connecting";
  lastSeq = null; // null until the first state has arrived
  #listeners = new Set();
  #abort = null;
  #wake = null;
  #lastHeard = 0;
  #resting = false;
  #current = false; // false while missed events are sent
  #late = false; // whether pages may have read their data before the first state
  #markReady = null;
  #tab = Math.random();

  /** Resolves when the first state has arrived, or does not come soon. Only then do pages read their data: an event
   * before the first state is not sent, so what they read earlier might be out of date. */
  ready = null;

  start() {
    this.ready = new Promise((resolve) => { this.#markReady = resolve; });
    setTimeout(() => this.#stopWaiting(), FIRST_STATE);
    window.addEventListener("online", () => this.#wake?.());
    document.addEventListener("visibilitychange", () => this.#handleVisible());
    window.addEventListener("pagehide", () => this.#abort?.abort());
    window.addEventListener("pageshow", (event) => event.persisted && this.#wake?.());
    this.#listenToTabs();
    this.#run();
  }

  /** Add a listener. Returns a function that removes it. */
  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #notify(name, value) {
    for (const listener of [...this.#listeners]) {
      try {
        listener[name]?.(value);
      } catch (error) {
        reportError(error);
      }
    }
  }

  #setStatus(status) {
    if (this.status === status) return;
    this.status = status;
    this.#notify("status", status);
  }

  /** Let pages read their data although the first state has not arrived. They read it again when it arrives. */
  #stopWaiting() {
    this.#late ||= this.lastSeq === null;
    this.#markReady();
  }

  async #run() {
    let pause = FIRST_PAUSE;
    for (;;) {
      let retryAfter = 0;
      const began = Date.now();
      try {
        retryAfter = await this.#connect();
      } catch {
        // refused, broken or closed on purpose: try again
      }
      if (retryAfter === "signed out") return;
      if (Date.now() - began > 5000) pause = FIRST_PAUSE;
      this.#stopWaiting();
      this.#setStatus(this.#resting ? "resting" : "offline");
      await this.#sleep(this.#resting ? null : Math.max(retryAfter, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  async #connect() {
    this.#abort = new AbortController();
    this.#current = false;
    const resume = this.lastSeq === null ? {} : { "last-event-id": String(this.lastSeq) };
    const guard = setInterval(() => Date.now() - this.#lastHeard > SILENCE && this.#abort.abort(), 5000);
    this.#lastHeard = Date.now();
    try {
      const reply = await fetch(`${API_ROOT}/events?${new URLSearchParams({
        state: "true", live: "true", ...(singleSession ? { session_key: singleSession } : {}),
      })}`, {
        signal: this.#abort.signal,
        cache: "no-store",
        headers: { accept: "text/event-stream", ...resume },
      });
      if (reply.status === 401) {
        redirectToSignIn();
        return "signed out";
      }
      if (!reply.ok) return 1000 * Number(reply.headers.get("retry-after") ?? 0);
      this.#announce();
      for await (const frame of readFrames(reply)) {
        this.#lastHeard = Date.now();
        this.#setStatus("live");
        if (frame.data) this.#handleFrame(frame);
      }
      return 0;
    } finally {
      clearInterval(guard);
    }
  }

  #handleFrame({ id, name, data }) {
    if (name === "state") {
      const earlier = this.lastSeq;
      this.lastSeq = data.as_of_seq;
      this.#current = true;
      this.#notify("state", data);
      if (this.#late || (earlier !== null && earlier > data.as_of_seq)) this.#notify("reset");
      this.#late = false;
      this.#markReady();
      return;
    }
    if (name === "gap") {
      if (data.payload?.oldest_seq != null) {
        this.lastSeq = null;
        this.#notify("reset");
      }
      return;
    }
    if (id === null)
      return void this.#notify("live", { kind: name, time: new Date(now()).toISOString(), session_key: singleSession,
        ...data });
    if (this.lastSeq !== null && id <= this.lastSeq) return;
    this.lastSeq = id;
    if (this.#current) syncClock(data.time);
    this.#notify("event", data);
  }

  #sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = milliseconds === null ? null : setTimeout(() => this.#wake?.(), milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = null;
        resolve();
      };
    });
  }

  #handleVisible() {
    if (document.hidden) return;
    this.#resting = false;
    this.#newer.clear();
    if (this.status !== "live") this.#wake?.();
    else if (Date.now() - this.#lastHeard > SILENCE) this.#abort?.abort();
  }

  // A hidden tab closes its connection when several newer tabs need theirs, and catches up when it is visible again.
  #newer = new Set();
  #channel = null;

  #listenToTabs() {
    this.#channel = new BroadcastChannel("midwatch");
    this.#channel.onmessage = ({ data }) => {
      if (data.signedOut) return redirectToSignIn();
      this.#newer.add(data.tab);
      if (document.hidden && this.#newer.size >= NEWER_TABS) {
        this.#resting = true;
        this.#abort?.abort();
      }
      return undefined;
    };
  }

  /** Notify the other tabs that the user has signed out. */
  signOut() {
    this.#channel?.postMessage({ signedOut: true });
  }

  #announce() {
    this.#channel?.postMessage({ tab: this.#tab });
  }
}

export const stream = new Stream();
