// The place of the console: at its own addresses, or as the page of a single session below another address.

const dataset = document.documentElement.dataset;

/** The key of the only session that is shown, or null. */
export const singleSession = dataset.session ?? null;

/** The path of the HTTP interface. */
export const API_ROOT = dataset.api ?? "/api/v1";

/** Return the path of a session's agentapi routes. */
export const getAgentApiPath = (key) =>
  new URL(dataset.surface ?? `/sessions/${encodeURIComponent(key)}/agentapi`, location.href).pathname.replace(/\/$/,
    "");
