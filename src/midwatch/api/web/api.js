// Speaking to the server: JSON in, JSON out, problems as errors that say what to do.

import { API } from "./place.js";

/** An error reply. `message` is for people, `code` for programs, `field` what it is about. */
export class Problem extends Error {
  constructor(status, body) {
    super([
      body.detail || body.title || `the server answered ${status}`,
      ...(body.errors ?? []).map((one) => one.message),
    ].join(": "));
    this.status = status;
    this.code = body.code ?? "error";
    this.field = body.field ?? null;
  }
}

/** Where to come back to after signing in. */
export function toSignIn() {
  if (location.pathname === "/sign-in") return;
  const back = location.pathname + location.search;
  location.replace(back === "/" ? "/sign-in" : `/sign-in?next=${encodeURIComponent(back)}`);
}

async function call(method, path, { body, form, key, signal, headers, stay = false, from = API } = {}) {
  let reply;
  try {
    reply = await fetch(from + path, {
      method,
      signal,
      credentials: "same-origin",
      headers: {
        accept: "application/json",
        ...(body === undefined || form ? {} : { "content-type": "application/json" }),
        ...(key ? { "idempotency-key": key } : {}),
        ...headers,
      },
      body: form ?? (body === undefined ? undefined : JSON.stringify(body)),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { code: "offline", detail: "The server cannot be reached; it may be restarting." });
  }
  const said = await reply.json().catch(() => ({}));
  if (reply.ok) return said;
  if (reply.status === 401 && !stay) toSignIn();
  throw new Problem(reply.status, said);
}

export const get = (path, options) => call("GET", path, options);
export const post = (path, body, options) => call("POST", path, { body: body ?? {}, ...options });
export const patch = (path, body, options) => call("PATCH", path, { body, ...options });
export const del = (path, options) => call("DELETE", path, options);

/** Several questions about one thing may be under way, and an older answer may come last. Call what this returns before
 * each: `isNext(key)` is whether no newer answer was taken, about `key` if there are several things; `isLast()` whether
 * nothing was asked since. */
export function asking() {
  const taken = new Map();
  let asked = 0;
  return () => {
    const mine = ++asked;
    return { isNext: (key) => !(taken.get(key) > mine) && Boolean(taken.set(key, mine)), isLast: () => mine === asked };
  };
}

/** A query string without empty values; lists repeat their name. */
export function query(values) {
  const made = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "" && one !== false) made.append(name, one);
    }
  }
  const text = made.toString();
  return text ? `?${text}` : "";
}

/** A path segment; session keys hold `:`, `|` and `/`. */
export const part = (text) => encodeURIComponent(text);
