import { addressOf, needsCare, subjectOf } from "/web/attention.js";
import { lastText } from "/web/pages/automations.js";
import { standText } from "/web/pages/goals.js";
import { noteOf, rootOf, whatOf } from "/web/handoff-parts.js";
import { surface } from "/web/place.js";
import { known, nameOf, outcomeText, short, tokensOf } from "/web/automation-parts.js";
import { each, equal } from "./check.js";

const handed = (task, more) => ({ id: "h_1", refusals: [], task, ...more });

export default {
  "what rests as somebody wished needs nobody": () => {
    each([
      [{ status: "paused", paused_why: "3 runs failed" }, true],
      [{ status: "paused", paused_why: "paused by a person" }, false],
      [{ status: "paused", paused_why: "" }, false], [{ status: "active", paused_why: "3 runs failed" }, false],
    ], needsCare);
  },

  "subjects lead to their pages": () => {
    each([["am_1", "/automations/am_1"], ["g_1", "/goals/g_1"], ["t_1", "/tasks/t_1"]], addressOf);
    each([[{ payload: { goal_id: "g_1" } }, "g_1"], [{ payload: {} }, null], [{}, null]], subjectOf);
  },

  "names are the first line of the best there is": () => {
    each(
      [
        [{ title: "", objective: "  a\nb", id: "g_1" }, "a"], [{ prompt: "p", title: "t" }, "t"],
        [{ id: "g_1" }, "g_1"],
      ],
      nameOf);
  },

  "tokens that nobody told are unknown": () => {
    each([[{}, null], [{ usage: { input_tokens: 0 } }, 0], [{ usage: { input_tokens: 2, output_tokens: 3 } }, 5]],
      tokensOf);
    each([[9999, "9999"], [10000, "10K"], [1250000, "1.3M"]], short);
  },

  "outcomes and facts leave out what says nothing": () => {
    each([[{ status: "done", outcome: "ok" }, "done"], [{ status: "failed", outcome: "timeout" }, "timeout"],
      [{ status: "done", outcome: null }, "done"]], outcomeText);
    equal(known([["a", 0], ["b", ""], ["c", null], ["d", false], ["e", undefined]]), [["a", 0], ["d", false]]);
  },

  "the last run is told in words": () => {
    each([
      [{ run_count: 0 }, "has not run yet"], [{ run_count: 1 }, "its first run has not ended yet"],
      [{ last_result: "ok: fine" }, "the last run went well"],
      [{ last_result: "error: no\ndisk", consecutive_failures: 2 }, "the last run failed: no\ndisk (2 in a row)"],
      [{ last_result: "error: no", consecutive_failures: 1 }, "the last run failed: no"],
    ], lastText);
  },

  "a goal says how it stands": () => {
    each([
      [{ status: "complete", evidence: "47" }, "reached: 47"], [{ status: "complete" }, "reached"],
      [{ status: "active", running: true, work: "verify" }, "its claim is verified"],
      [{ status: "active", delay_reason: "the tide", step: 1 }, "waits: the tide"],
      [{ status: "active", step: 0 }, "its first step begins"], [{ status: "paused" }, "paused: "],
    ], standText);
  },

  "what is handed over is told by its best words": () => {
    each([
      [handed({ description: "do\nit", input: "x" }), "do"], [handed({ input: "only this" }), "only this"],
      [handed({ input: { a: 1 } }), '{"a":1}'], [handed({ type: "say", input: "" }), "say"],
      [handed({ input: "" }), "h_1"],
    ], (one) => whatOf(one));
  },

  "what is worth knowing of a handoff": () => {
    const one = handed({},
      { to_agent_id: "b", refusals: [{ agent: "a" }, { agent: "b" }], retry_count: 1, reason: null });
    equal(noteOf(one), "refused by a · 2 tries");
    equal(noteOf(handed({}, { form: "transfer", retry_count: 0, reason: "late" })), "transfer · late");
    each([[{ root_id: "t_0", task_id: "t_1" }, "t_0"], [{ task_id: "t_1", id: "h" }, "t_1"], [{ id: "h" }, "h"]],
      rootOf);
  },

  "a session's routes are below its key, whatever it holds": () => {
    equal(surface("chat:a/b|ü"), "/sessions/chat%3Aa%2Fb%7C%C3%BC/agentapi");
  },
};
