// Where this is: the console at its own addresses, or the page of one session below another address.

const told = document.documentElement.dataset;

/** The only session there is to see, or null. */
export const single = told.session ?? null;

/** Where the interface is. */
export const API = told.api ?? "/api/v1";

/** Where a session's routes for clients of agentapi are. */
export const surface = (key) =>
  new URL(told.surface ?? `/sessions/${encodeURIComponent(key)}/agentapi`, location.href).pathname.replace(/\/$/, "");
