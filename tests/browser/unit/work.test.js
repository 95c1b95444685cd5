import { Work } from "/web/work.js";
import { equal } from "./check.js";

let seq = 0;
const stored = (kind, payload = {}, more = {}) => {
  seq += 1;
  return { kind, payload, seq, time: String(seq).padStart(6, "0"), task_id: "t_1", attempt: 1, ...more };
};
const live = (offset, text, id = "h1") =>
  ({ kind: "thought_delta", task_id: "t_1", time: "999999", payload: { thought_id: id, offset, text } });
const after = (...events) => {
  const work = new Work();
  events.forEach((event) => work.handle(event));
  return work;
};
const thoughts = (...events) => after(...events).steps.map((one) => one.text);

export default {
  "a thought grows and is shown once when it is complete": () => {
    const work = after(live(0, "Let "), live(4, "me "), live(4, "me see"));
    equal(work.steps.map((one) => [one.text, one.open]), [["Let me see", true]]);
    work.handle(stored("thought_update", { thought_id: "h1", text: "Let me see." }));
    equal(work.handle(live(10, " late")), false);
    equal(work.steps.map((one) => [one.text, one.open]), [["Let me see.", false]]);
  },

  "a missing part of a thought is marked and the rest is appended": () => {
    equal(thoughts(live(0, "one "), live(8, "three "), live(14, "four")), ["one … three four"]);
    equal(thoughts(live(5, "late "), live(10, "on")), ["… late on"]);
    equal(thoughts(live(0, "😀a"), live(2, "b")), ["😀ab"]);
  },

  "two concurrent thoughts are separate": () => {
    equal(thoughts(live(0, "a", "h1"), live(0, "b", "h2"), live(1, "a", "h1")), ["aa", "b"]);
  },

  "the results that an agent got are a step": () => {
    const { steps } = after(stored("context_injected", { count: 1, task_ids: ["t_2"], outcomes: ["ok"] }));
    equal(steps.map((one) => [one.kind, one.tasks, one.outcomes]), [["results", ["t_2"], ["ok"]]]);
  },

  "a stored event counts once": () => {
    const end = stored("turn_end", { status: "completed" });
    const work = after(end);
    equal([work.handle(end), work.steps.length], [false, 1]);
  },

  "a plan is changed in place": () => {
    const work = after(stored("plan_update", { entries: [{ content: "a" }] }),
      stored("plan_update", { entries: null }));
    equal(work.steps.map((one) => [one.kind, one.entries, one.version]), [["plan", [], 1]]);
  },

  "a skipped tool is a step with the rule that said no, and does not count as a tool of the turn": () => {
    const { steps } = after(stored("tool_exec_skipped", { tool: "rm", reason: "It was not run.", rule: "deny delete" }),
      stored("tool_exec_skipped", { tool: "ls", reason: "The turn is ending." }),
      stored("tool_exec_start", { tool: "ls" }), stored("tool_exec_end", { tool: "ls" }),
      stored("turn_end", { status: "completed" }));
    equal(steps.map((one) => [one.title, one.skipped, one.result, one.tools]), [
      ["rm: deny delete", true, "It was not run.", undefined],
      ["ls: The turn is ending.", true, "The turn is ending.", undefined], [null, undefined, null, undefined],
      [undefined, undefined, undefined, 1],
    ]);
  },

  "a tool that is used again is another step": () => {
    const use = () => [stored("tool_exec_start", { tool: "ls" }), stored("tool_exec_end", { tool: "ls", result: "x" })];
    const { steps } = after(...use(), ...use());
    equal(steps.map((one) => [one.tool, one.open, one.result]), [["ls", false, "x"], ["ls", false, "x"]]);
    equal(new Set(steps.map((one) => one.key)).size, 2);
  },

  "the end of a tool without a known start is a step": () => {
    const { steps } = after(stored("tool_exec_end", { tool: "ls", is_error: true, duration: 0 }));
    equal(steps.map((one) => [one.bad, one.open, one.duration, one.started]), [[true, false, 0, undefined]]);
  },

  "tools with one name in two attempts are separate": () => {
    const begin = (attempt) => stored("tool_exec_start", { tool: "ls", tool_call_id: "c" }, { attempt });
    equal(after(begin(1), begin(2)).steps.length, 2);
  },

  "the end of a turn ends the open steps of its task only": () => {
    const { steps } = after(stored("tool_exec_start", { tool: "a" }),
      stored("tool_exec_start", { tool: "b" }, { task_id: "t_2" }), stored("turn_end", { status: "aborted" }));
    equal(steps.map((one) => [one.kind, one.open]), [["tool", false], ["tool", true], ["turn", false]]);
  },

  "each turn counts its own tools and tokens": () => {
    const turn = (attempt, spent, calls) => [
      ...spent.map((input_tokens) => stored("llm_response", { usage: { input_tokens }, model: "m" }, { attempt })),
      ...calls.map((tool_call_id) => stored("tool_exec_end", { tool: "ls", tool_call_id }, { attempt })),
      stored("turn_end", { status: "completed" }, { attempt }),
    ];
    const { steps } = after(...turn(1, [40, 2], ["a", "b"]), ...turn(2, [5], ["c"]),
      stored("task_finished", { usage: { input_tokens: 47 } }, { attempt: 2 }));
    equal(steps.filter((one) => one.kind === "turn").map((one) => [one.tools, one.usage]),
      [[2, { input_tokens: 42, model: "m" }], [1, { input_tokens: 5, model: "m" }]]);
  },

  "a single turn without usage shows the usage of its task": () => {
    const { steps } = after(stored("turn_end"), stored("task_finished", { usage: { cost_usd: 1 } }));
    equal(steps.map((one) => one.usage), [{ cost_usd: 1 }]);
    equal(after(stored("llm_response", { usage: { input_tokens: "many" } }), stored("turn_end")).steps[0].usage, {});
  },

  "an answer shows its question, or an empty one if it was not received": () => {
    const answer = stored("approval_resolved", { approval_id: "a1", status: "granted", answer: "Yes" },
      { actor: "anna" });
    const [known] = after(stored("approval_requested", { approval_id: "a1", question: "May it?" }), answer).steps;
    equal([known.question, known.status, known.by], ["May it?", "granted", "anna"]);
    equal(after(answer).steps.map((one) => one.question), [""]);
  },

  "an unfinished thought survives a reload until its turn ends": () => {
    const work = after(live(0, "hm"));
    const tool = stored("tool_exec_start", { tool: "ls" });
    work.reset([tool], "000000");
    equal(work.steps.map((one) => [one.kind, one.time]), [["tool", tool.time], ["thought", tool.time]]);
    work.reset([tool, stored("turn_end")]);
    equal(work.steps.map((one) => one.kind), ["tool", "turn"]);
  },

  "a live step is placed after the stored ones, whatever the local clock shows": () => {
    const tool = stored("tool_exec_start", { tool: "ls" });
    equal(after(tool, live(0, "hm")).steps.map((one) => one.time), [tool.time, tool.time]);
  },

  "events of other kinds make no steps": () => {
    const work = new Work();
    equal([work.handle(stored("task_started")), work.handle({ kind: "steps", payload: {} }), work.steps],
      [false, false, []]);
  },
};
