// The icons of the console: 16 by 16, one stroke, in the colour of the text around them.

import { svg } from "./dom.js";

const PATHS = {
  now: "M8 2.2v2M8 11.8v2M2.2 8h2M11.8 8h2M8 8m-2.8 0a2.8 2.8 0 1 0 5.6 0a2.8 2.8 0 1 0-5.6 0",
  tasks: "M3 4l1 1 1.8-2M8 4h5.5M3 8.2l1 1 1.8-2M8 8.2h5.5M3 12.4l1 1 1.8-2M8 12.4h5.5",
  sessions: "M2.5 3.5h11v7.5h-6l-3 2.5v-2.5h-2z",
  automations: "M2.5 8a5.5 5.5 0 1 0 1.6-3.9M2.5 2.6v2.6h2.6M8 5.2v3.1l2.1 1.2",
  goals: "M4 14V2.5M4 3h8.5l-2 2.75 2 2.75H4",
  handoffs: "M2.5 5.2h9.5M9.4 2.6L12 5.2 9.4 7.8M13.5 10.8H4M6.6 8.2L4 10.8l2.6 2.6",
  events: "M2 8.5h2.5l1.8-5 3 9 1.9-4h2.8",
  agents: "M4 6.5h8v6H4zM8 6.5v-3M6.3 9.3v.4M9.7 9.3v.4M2.2 8.5v2M13.8 8.5v2",
  settings:
    "M2.5 5h5M11 5h2.5M9.2 5m-1.7 0a1.7 1.7 0 1 0 3.4 0a1.7 1.7 0 1 0-3.4 0" +
    "M2.5 11h2M8 11h5.5M6.2 11m-1.7 0a1.7 1.7 0 1 0 3.4 0a1.7 1.7 0 1 0-3.4 0",
  theme: "M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11M8 2.5v11M8 5.5l4 .2M8 8h5.4M8 10.5l4-.2",
  help: "M6 6a2 2 0 1 1 2.8 1.8c-.6.3-.8.7-.8 1.4M8 11.5v.3M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12",
  plus: "M8 3v10M3 8h10",
  check: "M3 8.5l3.2 3.2L13 5",
  cross: "M4 4l8 8M12 4l-8 8",
  stop: "M4.5 4.5h7v7h-7z",
  retry: "M12.8 6.5A5 5 0 1 0 13 9M13 3.5v3h-3",
  folder: "M2 4.2h4l1.3 1.5H14v6.8H2z",
  up: "M8 13V4M4 7.5L8 3.5l4 4",
  copy: "M5.5 5.5h7.5v7.5H5.5zM3 10.5V3h7.5",
  send: "M2.5 8h9M8 4l4 4-4 4",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  edit: "M3 13l.6-2.8 7-7 2.2 2.2-7 7zM9.2 4.6l2.2 2.2",
  bin: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.6 9h5.8l.6-9",
  play: "M5 3.5l7 4.5-7 4.5z",
  alert: "M8 2.5l6 11H2zM8 6.5v3.2M8 11.4v.3",
  question: "M5.8 6.2a2.2 2.2 0 1 1 3 2c-.6.3-.8.8-.8 1.5M8 12v.3",
  clock: "M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11M8 5v3.2l2 1.3",
  key: "M9.5 6.5m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0M7.3 8.7L3 13M4.5 11.5l1.5 1.5",
  inbox: "M2.5 9.5l2-6h7l2 6v4h-11zM2.5 9.5h3.2l1 1.7h2.6l1-1.7h3.2",
  rules: "M8 2l5 2v4c0 3-2.2 5-5 6-2.8-1-5-3-5-6V4zM5.8 8l1.6 1.6 3-3",
  budgets: "M2.5 12a5.5 5.5 0 1 1 11 0zM8 12l2.6-4.2M4.9 9.4h.1M6.3 7.5h.1",
  usage: "M2.5 13.5h11M4 13.5v-4M7 13.5v-8M10 13.5v-5.5M12.8 13.5V3",
  more: "M3.5 8h.1M8 8h.1M12.5 8h.1",
  thought: "M3.6 9.6a3.2 3.2 0 0 1 .6-6.1 3.6 3.6 0 0 1 6.6.6 2.9 2.9 0 0 1 .6 5.5zM5.6 12.3h.1M4 14h.1",
  tool: "M9 6.8a3.3 3.3 0 0 1 4-4.1l-2 2 .3 1.8 1.8.3 2-2a3.3 3.3 0 0 1-4.1 4L5.2 13.6a1.4 1.4 0 0 1-2.8-2z",
  file: "M4 2.5h5l3 3v8H4zM9 2.5v3h3",
  search: "M7 7m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0M10 10l3.5 3.5",
  terminal: "M2.5 3.5h11v9h-11zM4.8 6.2L6.6 8 4.8 9.8M8 10h3",
  globe: "M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11M2.5 8h11M8 2.5c-4 3.6-4 7.4 0 11M8 2.5c4 3.6 4 7.4 0 11",
  move: "M2.5 8h11M10.5 5l3 3-3 3M2.5 4v8",
  branch:
    "M5 4.5v7M5 3m-1.5 0a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0M5 13m-1.5 0a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0" +
    "M11.5 5m-1.5 0a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0M11.5 6.5c0 2.5-3.5 2.2-6.3 4",
  attach: "M12.5 7.5l-5 5a2.8 2.8 0 0 1-4-4l5.6-5.6a1.9 1.9 0 0 1 2.7 2.7l-5.6 5.6a.9.9 0 0 1-1.3-1.3l5-5",
  out: "M6.5 2.5h-3v11h3M6.5 8h7M10.5 5l3 3-3 3",
};

/** Create an icon by name. Screen readers ignore it, so its button needs a label. */
export function icon(name, size = 16) {
  return svg(
    "svg.icon",
    { viewBox: "0 0 16 16", width: size, height: size, "aria-hidden": "true", focusable: "false" },
    svg("path", { d: PATHS[name] ?? "" }),
  );
}
