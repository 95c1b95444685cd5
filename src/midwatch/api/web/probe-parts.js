// The command that midwatch ran for a task, before its agent was called or after its turn.

import { h, setText } from "./dom.js";
import { createPanel } from "./parts.js";
import { formatPeriod } from "./time.js";

const TITLES = { when: "Command before the run", check: "Check of the goal" };

/** Describe how a command ended, from the payload of its `probe_end` event. */
export function describeProbe({ exit_status: status, error, duration }) {
  const how = status === null || status === undefined ? (error ?? "stopped") : `exit status ${status}`;
  return duration ? `${how}, after ${duration < 1 ? "less than 1 s" : formatPeriod(Math.round(duration))}` : how;
}

/** Create a panel with the latest command of a task; it is hidden while no command has run. */
export function createProbePanel() {
  const command = h("code.probe-command");
  const end = h("p.dim");
  const output = h("div.plain-text.clamped-text");
  const { node } = createPanel("Command", { name: "probe", content: [h("p", command), end, output] });
  const title = node.querySelector("h2");
  node.hidden = true;
  const show = (events) => {
    const start = events.findLast((event) => event.kind === "probe_start");
    node.hidden = !start;
    if (!start) return;
    const ended = events.findLast((event) => event.kind === "probe_end" && event.seq > start.seq);
    setText(title, TITLES[start.payload.probe] ?? "Command");
    setText(command, start.payload.command);
    setText(end, ended ? describeProbe(ended.payload) : "runs now");
    end.classList.toggle("bad-text", Boolean(ended?.payload.error));
    setText(output, ended?.payload.output ?? "");
    output.hidden = !ended?.payload.output;
  };
  return { node, show };
}
