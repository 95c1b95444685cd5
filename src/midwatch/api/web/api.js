// Requests to the server and replies, both JSON. An error reply is thrown as a Problem, whose text explains what to do.

import { API_ROOT } from "./place.js";

/** An error reply. `message` is for people, `code` is for programs, `field` names the form field it is about. */
export class Problem extends Error {
  constructor(status, body) {
    super([
      body.detail || body.title || `the server answered ${status}`,
      ...(body.errors ?? []).map((error) => error.message),
    ].join(": "));
    this.status = status;
    this.code = body.code ?? "error";
    this.field = body.field ?? null;
  }
}

/** Open the sign-in page, which returns to the current page afterwards. */
export function redirectToSignIn() {
  if (location.pathname === "/sign-in") return;
  const back = location.pathname + location.search;
  location.replace(back === "/" ? "/sign-in" : `/sign-in?next=${encodeURIComponent(back)}`);
}

async function sendRequest(method, path, { body, form, key, signal, headers, stay = false, from = API_ROOT } = {}) {
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
    throw new Problem(0, { code: "offline",
      detail: "The server cannot be reached. It may be restarting; try again in a moment." });
  }
  const content = await reply.json().catch(() => ({}));
  if (reply.ok) return content;
  if (reply.status === 401 && !stay) redirectToSignIn();
  throw new Problem(reply.status, content);
}

export const get = (path, options) => sendRequest("GET", path, options);
export const post = (path, body, options) => sendRequest("POST", path, { body: body ?? {}, ...options });
export const patch = (path, body, options) => sendRequest("PATCH", path, { body, ...options });
export const del = (path, options) => sendRequest("DELETE", path, options);

/** Keep replies in order when several requests for the same thing run at once, because an older reply may arrive last.
 *
 * Call the returned function before each request. `accept(key)` accepts its reply and returns true, unless the reply to
 * a newer request was accepted before; `key` separates requests for different things. `isLatest()` is true until the
 * next request starts. */
export function trackRequests() {
  const accepted = new Map();
  let latest = 0;
  return () => {
    const number = ++latest;
    return {
      accept: (key) => !(accepted.get(key) > number) && Boolean(accepted.set(key, number)),
      isLatest: () => number === latest,
    };
  };
}

/** Read a page of a list. If a filter is rare, a page may be empty although others follow: then read the next page. */
export async function getFilledPage(page, noun, filter, before) {
  let reply = { [noun]: [], next: before };
  do reply = await get(`/${noun}${buildQuery({ ...filter, before: reply.next })}`);
  while (!reply[noun].length && reply.next && page.isCurrent());
  return reply;
}

/** Build a query string without empty values. A list repeats its name. */
export function buildQuery(values) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== "" && item !== false) params.append(name, item);
    }
  }
  const text = params.toString();
  return text ? `?${text}` : "";
}

/** Encode a path segment; session keys contain `:`, `|` and `/`. */
export const encodeSegment = (text) => encodeURIComponent(text);
