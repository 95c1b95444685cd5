// The one stream of the page: every stored event once and in order, across lost connections and restarts.
//
// Listeners get: event(event), live(event), state(data), reset(), status(name). After a lost connection the server
// sends what was missed (Last-Event-ID), then the state, then what follows. `reset` means that events are gone for
// good (pruned, or another store) and everything shown must be read again.

import { toSignIn } from "./api.js";
import { API, single } from "./place.js";
import { learnTime, now } from "./time.js";

const FIRST_PAUSE = 400;
const LONGEST_PAUSE = 15000;
const SILENCE = 40000; // the server says something every 15 s
const NEWER_TABS = 3; // browsers allow six connections per host, over all tabs

/** The frames of a reply, one after the other. */
export async function* frames(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        const frame = parse(text.slice(0, end));
        text = text.slice(end + 2);
        yield frame;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(text) {
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

/** The present state of a task or session with its partial text: the first frame of a stream that is then let go. */
export async function snapshot(filter, signal) {
  signal?.throwIfAborted();
  const stop = new AbortController();
  signal?.addEventListener("abort", () => stop.abort(), { once: true });
  const address = `${API}/events?${new URLSearchParams({ ...filter, state: "true", live: "true" })}`;
  const reply = await fetch(address, { signal: stop.signal, headers: { accept: "text/event-stream" } });
  if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
  try {
    for await (const frame of frames(reply)) if (frame.name === "state") return frame.data;
  } finally {
    stop.abort();
  }
  throw new Error("the stream ended before it began");
}

export class Stream {
  status = "connecting";
  lastSeq = null; // null until the first state has come
  #listeners = new Set();
  #abort = null;
  #wake = null;
  #heard = 0;
  #resting = false;
  #current = false; // whether what comes now is what happens now
  #tab = Math.random();

  start() {
    window.addEventListener("online", () => this.#wake?.());
    document.addEventListener("visibilitychange", () => this.#seen());
    window.addEventListener("pagehide", () => this.#abort?.abort());
    window.addEventListener("pageshow", (shown) => shown.persisted && this.#wake?.());
    this.#share();
    this.#run();
  }

  /** Add a listener; returns how to remove it. */
  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #tell(name, value) {
    for (const listener of [...this.#listeners]) {
      try {
        listener[name]?.(value);
      } catch (error) {
        reportError(error);
      }
    }
  }

  #become(status) {
    if (this.status === status) return;
    this.status = status;
    this.#tell("status", status);
  }

  async #run() {
    let pause = FIRST_PAUSE;
    for (;;) {
      let asked = 0;
      const began = Date.now();
      try {
        asked = await this.#connect();
      } catch {
        // refused, cut off or let go: the next try tells
      }
      if (asked === "signed out") return;
      if (Date.now() - began > 5000) pause = FIRST_PAUSE;
      this.#become(this.#resting ? "resting" : "offline");
      await this.#sleep(this.#resting ? null : Math.max(asked, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  async #connect() {
    this.#abort = new AbortController();
    this.#current = false;
    const resume = this.lastSeq === null ? {} : { "last-event-id": String(this.lastSeq) };
    const guard = setInterval(() => Date.now() - this.#heard > SILENCE && this.#abort.abort(), 5000);
    this.#heard = Date.now();
    try {
      const reply = await fetch(`${API}/events?${new URLSearchParams({
        state: "true", live: "true", ...(single ? { session_key: single } : {}),
      })}`, {
        signal: this.#abort.signal,
        cache: "no-store",
        headers: { accept: "text/event-stream", ...resume },
      });
      if (reply.status === 401) {
        toSignIn();
        return "signed out";
      }
      if (!reply.ok) return 1000 * Number(reply.headers.get("retry-after") ?? 0);
      this.#announce();
      for await (const frame of frames(reply)) {
        this.#heard = Date.now();
        this.#become("live");
        if (frame.data) this.#take(frame);
      }
      return 0;
    } finally {
      clearInterval(guard);
    }
  }

  #take({ id, name, data }) {
    if (name === "state") {
      const earlier = this.lastSeq;
      this.lastSeq = data.as_of_seq;
      this.#current = true;
      this.#tell("state", data);
      if (earlier !== null && earlier > data.as_of_seq) this.#tell("reset");
      return;
    }
    if (name === "gap") {
      if (data.payload?.oldest_seq != null) {
        this.lastSeq = null;
        this.#tell("reset");
      }
      return;
    }
    if (id === null)
      return void this.#tell("live", { kind: name, time: new Date(now()).toISOString(), session_key: single, ...data });
    if (this.lastSeq !== null && id <= this.lastSeq) return;
    this.lastSeq = id;
    if (this.#current) learnTime(data.time);
    this.#tell("event", data);
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

  #seen() {
    if (document.hidden) return;
    this.#resting = false;
    this.#newer.clear();
    if (this.status !== "live") this.#wake?.();
    else if (Date.now() - this.#heard > SILENCE) this.#abort?.abort();
  }

  // A hidden tab gives up its connection when several newer tabs need theirs; it catches up when it is seen again.
  #newer = new Set();
  #channel = null;

  #share() {
    this.#channel = new BroadcastChannel("midwatch");
    this.#channel.onmessage = ({ data }) => {
      if (data.signedOut) return toSignIn();
      this.#newer.add(data.tab);
      if (document.hidden && this.#newer.size >= NEWER_TABS) {
        this.#resting = true;
        this.#abort?.abort();
      }
      return undefined;
    };
  }

  /** The cookie is gone, for the other tabs as well. */
  signOut() {
    this.#channel?.postMessage({ signedOut: true });
  }

  #announce() {
    this.#channel?.postMessage({ tab: this.#tab });
  }
}

export const stream = new Stream();
