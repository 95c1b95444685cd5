// The spans of time of a task: attempts, turns, model calls, tools and waits. The spans of work that grew out of the
// task are nested under the step that started this work.

/** Collect spans of time, in the order in which they began. An open span has no end. */
export function collectSpans(events) {
  const spans = [];
  const open = new Map();
  const begin = (key, event, kind, label, depth) => {
    end(key, event); // a new span of the same name ends the old one
    const span = {
      key: `${key}#${event.seq}`, kind, label, depth, from: Date.parse(event.time), to: null, bad: false, event,
      end: null,
    };
    open.set(key, span);
    spans.push(span);
  };
  const end = (key, event, bad = false) => {
    const span = open.get(key);
    if (!span) return;
    open.delete(key);
    Object.assign(span, { to: Date.parse(event.time), bad, end: event });
  };
  const endAll = (event, bad) => { for (const key of [...open.keys()]) end(key, event, bad); };
  for (const event of events) {
    const { kind, payload: p } = event;
    if (kind === "task_submitted") begin("wait", event, "wait", "queued", 0);
    else if (kind === "task_started") {
      end("wait", event);
      begin("attempt", event, "attempt", `attempt ${event.attempt ?? 1}`, 0);
    } else if (kind === "turn_start") begin("turn", event, "turn", "turn", 1);
    else if (kind === "turn_end") end("turn", event, ["error", "timeout", "budget"].includes(p.status));
    else if (kind === "llm_request") begin(`llm ${p.request_id}`, event, "llm", p.model, 2);
    else if (kind === "llm_response") end(`llm ${p.request_id}`, event, p.finish_reason === "error");
    else if (kind === "tool_exec_start") begin(`tool ${p.tool_call_id ?? p.tool}`, event, "tool", p.title || p.tool, 2);
    else if (kind === "tool_exec_end") end(`tool ${p.tool_call_id ?? p.tool}`, event, p.is_error);
    else if (kind === "approval_requested") begin(`ask ${p.approval_id}`, event, "wait", "waiting for an answer", 2);
    else if (kind === "approval_resolved") end(`ask ${p.approval_id}`, event);
    else if (kind === "task_waiting" && p.wait !== "approval") {
      endAll(event, false);
      begin("wait", event, "wait", p.wait, 0);
    } else if (kind === "task_interrupted") {
      endAll(event, false);
      begin("wait", event, "wait", `interrupted: ${p.reason}`, 0);
    } else if (kind === "task_rescued") {
      endAll(event, true);
      if (p.action !== "fail") begin("wait", event, "wait", "rescued", 0);
    } else if (kind === "task_finished") endAll(event, p.status === "failed");
  }
  return spans;
}

const LEFT_OUT = "..."; // stands for the middle of a long path

/** Return whether an event belongs to work that grew out of the task or goal `id`. */
export const isBelow = (event, id) =>
  event.task_id !== id && Boolean(event.trace_path?.split("/").includes(id));

/**
 * Collect the spans of a task and of all work that grew out of it, in the order in which they are shown.
 * `works` has the events of each task, in order. The work of tasks in `folded` is left out.
 */
export function collectTree(id, works, folded = new Set()) {
  const children = groupByParent(id, works);
  const build = (task, depth, isRoot) => {
    const all = collectSpans(works.get(task) ?? []);
    const own = (isRoot ? all : dropOuter(all)).map((span) => ({ ...span, depth: depth + span.depth }));
    const blocks = new Map();
    for (const child of children.get(task) ?? []) {
      const starter = findStarter(own, child.first);
      const head = createHead(child, (starter?.depth ?? depth) + 1, folded.has(child.id));
      const block = head.folded ? [head] : [head, ...build(child.id, head.depth, false)];
      const at = findPlace(own, starter, head.from);
      blocks.set(at, [...(blocks.get(at) ?? []), ...block]);
    }
    return [...(blocks.get(-1) ?? []), ...own.flatMap((span, at) => [span, ...(blocks.get(at) ?? [])])];
  };
  return build(id, 0, true);
}

/** Return the tasks that grew out of each task, by the id of this task. */
function groupByParent(id, works) {
  const children = new Map();
  for (const [task, events] of works) {
    const first = events.find((event) => isBelow(event, id));
    if (task === id || !first) continue;
    const parent = first.trace_path.split("/").at(-2);
    const known = parent !== LEFT_OUT && works.has(parent) ? parent : id;
    children.set(known, [...(children.get(known) ?? []), { id: task, first, events }]);
  }
  for (const list of children.values()) list.sort((a, b) => a.first.seq - b.first.seq);
  return children;
}

/** Leave out the spans that the line of the task itself shows: the time in the queue, and its only attempt. */
function dropOuter(spans) {
  const attempts = spans.filter((span) => span.kind === "attempt").length;
  return spans.filter((span) => span.label !== "queued" && (span.kind !== "attempt" || attempts > 1))
    .map((span) => ({ ...span, depth: Math.max(1, span.depth) }));
}

/** Find the step that started work: a tool that ran at that time, else the turn. */
function findStarter(spans, first) {
  const at = Date.parse(first.time);
  const ofTurn = spans.filter((span) => span.event.turn_id && span.event.turn_id === first.parent_turn_id);
  return ofTurn.findLast((span) => span.kind === "tool" && span.from <= at && (span.to ?? Infinity) >= at)
    ?? ofTurn.find((span) => span.kind === "turn") ?? spans.findLast((span) => span.kind === "attempt");
}

/** Return the index of the span below which work is shown: a tool that started it, or else the last step before it. */
function findPlace(spans, starter, from) {
  const start = spans.indexOf(starter);
  if (starter?.kind === "tool") return start;
  const next = spans.findIndex((span, at) => at > start && span.from > from);
  return (next < 0 ? spans.length : next) - 1;
}

function createHead({ id, first, events }, depth, folded) {
  const end = events.findLast((event) => event.kind === "task_finished") ?? null;
  return {
    key: `task ${id}`, kind: "child", task: id, folded, depth,
    label: [first.agent_id, first.source].filter(Boolean).join(", "), from: Date.parse(first.time),
    to: end && Date.parse(end.time), bad: end?.payload.status === "failed", event: first, end,
  };
}
