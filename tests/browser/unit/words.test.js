import { getAddress, getSubject, needsAttention } from "/web/attention.js";
import { formatLastRun } from "/web/pages/automations.js";
import { formatGoalState } from "/web/pages/goals.js";
import { describeWork, formatNote, getRoot } from "/web/handoff-parts.js";
import { renderFacts } from "/web/parts.js";
import { getAgentApiPath } from "/web/place.js";
import { formatOutcome, formatPause, getName } from "/web/automation-parts.js";
import { each, equal } from "./check.js";

const handed = (task, more) => ({ id: "h_1", refusals: [], task, ...more });

export default {
  "an expected pause needs no attention": () => {
    each([
      [{ status: "paused", paused_why: "3 runs failed" }, true],
      [{ status: "paused", paused_why: "paused by a person" }, false],
      [{ status: "paused", paused_why: "" }, false], [{ status: "active", paused_why: "3 runs failed" }, false],
    ], needsAttention);
  },

  "subjects link to their pages": () => {
    each([["am_1", "/automations/am_1"], ["g_1", "/goals/g_1"], ["t_1", "/tasks/t_1"]], getAddress);
    each([[{ payload: { goal_id: "g_1" } }, "g_1"], [{ payload: {} }, null], [{}, null]], getSubject);
  },

  "a name is the first line of the best available text": () => {
    each(
      [
        [{ title: "", objective: "  a\nb", id: "g_1" }, "a"], [{ prompt: "p", title: "t" }, "t"],
        [{ id: "g_1" }, "g_1"],
      ],
      getName);
  },

  "known reasons of a pause are reworded, others are shown as they are": () => {
    each([["paused by a person", "Paused manually"], ["3 runs failed", "Paused: 3 runs failed"], [null, "Paused"]],
      (reason) => formatPause({ paused_why: reason }));
  },

  "normal outcomes are omitted": () => {
    each([[{ status: "done", outcome: "ok" }, "done"], [{ status: "failed", outcome: "timeout" }, "timeout"],
      [{ status: "done", outcome: null }, "done"]], formatOutcome);
  },

  "unknown facts are omitted": () => {
    const list = document.createElement("dl");
    renderFacts(list, [["a", 0], ["b", ""], ["c", null], ["d", "x"], ["e", undefined]]);
    equal([...list.children].map((fact) => fact.textContent), ["a0", "dx"]);
  },

  "the last run is described in words": () => {
    each([
      [{ run_count: 0 }, "Not run yet"], [{ run_count: 1 }, "The first run has not ended yet"],
      [{ last_result: "ok: fine" }, "The last run succeeded"],
      [{ last_result: "error: no\ndisk", consecutive_failures: 2 }, "The last run failed: no\ndisk (2 in a row)"],
      [{ last_result: "error: no", consecutive_failures: 1 }, "The last run failed: no"],
    ], formatLastRun);
  },

  "a goal shows its state": () => {
    each([
      [{ status: "complete", evidence: "47" }, "Reached: 47"], [{ status: "complete" }, "Reached"],
      [{ status: "active", running: true, work: "verify" }, "Checking the result"],
      [{ status: "active", delay_reason: "the tide", step: 1 }, "Waiting: the tide"],
      [{ status: "active", step: 0 }, "The first step starts"], [{ status: "paused" }, "Paused"],
    ], formatGoalState);
  },

  "a handoff is named by its best text": () => {
    each([
      [handed({ description: "do\nit", input: "x" }), "do"], [handed({ input: "only this" }), "only this"],
      [handed({ input: { a: 1 } }), '{"a":1}'], [handed({ type: "say", input: "" }), "say"],
      [handed({ input: "" }), "h_1"],
    ], (one) => describeWork(one));
  },

  "a handoff has a note": () => {
    const one = handed({},
      { to_agent_id: "b", refusals: [{ agent: "a" }, { agent: "b" }], retry_count: 1, reason: null });
    equal(formatNote(one), "refused by a · 2 attempts");
    equal(formatNote(handed({}, { form: "transfer", retry_count: 0, reason: "late" })), "transfer · late");
    each([[{ root_id: "t_0", task_id: "t_1" }, "t_0"], [{ task_id: "t_1", id: "h" }, "t_1"], [{ id: "h" }, "h"]],
      getRoot);
  },

  "the routes of a session are below its encoded key": () => {
    equal(getAgentApiPath("chat:a/b|ü"), "/sessions/chat%3Aa%2Fb%7C%C3%BC/agentapi");
  },
};
