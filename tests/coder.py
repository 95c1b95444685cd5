"""A fake coding agent that thinks, plans, uses tools, changes files and asks for permission. Its output is invented;
words in the prompt decide what it does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from midwatch.agents.base import message_id
from midwatch.agents.function import FunctionAgent
from midwatch.domain.agent import AgentTerms, Choice, Question, Turn, TurnResult, Usage
from midwatch.domain.event import (
    LlmRequest,
    LlmResponse,
    LoopError,
    MessageDelta,
    PlanUpdate,
    ThoughtDelta,
    ThoughtUpdate,
    ToolExecEnd,
    ToolExecStart,
)

PLAN = (
    "Read how retries are spaced",
    "Put a ceiling on the back-off",
    "Run the tests of the worker",
    "Say what changed",
)
THOUGHT = (
    "The back-off doubles without an end: after twelve failures a task would wait for more than an hour. "
    "A ceiling of five minutes is what the settings page promises.\n\nThe test for a lost connection sleeps; "
    "that is another matter and stays as it is."
)
PATCH = """--- a/src/worker.py
+++ b/src/worker.py
@@ -41,7 +41,7 @@ def retry(task: Task) -> float:
     \"\"\"How long to wait before the next try.\"\"\"
-    return 2.0**task.failures
+    return min(CEILING, 2.0**task.failures)


@@ -90,3 +90,5 @@
 # -- limits
+
+CEILING = 300.0
"""
LONG = "--- a/docs/history.md\n+++ b/docs/history.md\n@@ -1,60 +1,60 @@\n" + "".join(
    f"-line {number} as it was before somebody looked at it\n+line {number} as it reads now\n" for number in range(60)
)
ALWAYS = (
    Choice("Always allow", "allow_always"), Choice("Reject", "reject_once"), Choice("Allow", "allow_once"),
)  # fmt: skip
ANSWER = """The back-off has a ceiling now: **five minutes**.

- `src/worker.py`: `retry` takes the smaller one
- the tests of the worker pass
"""
USED = Usage(input_tokens=48_210, output_tokens=2_904, cost_usd=0.2113, model="large-4")


class Coder(FunctionAgent):
    """The agent, on the event loop of the server, so that its questions have all details."""

    kind = "coder"

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> Coder:
        return cls(name, work, on_loop=True, terms=terms, description=description)

    def describe(self) -> Mapping[str, Any]:
        return {
            "target": "coder",
            "way": "acp",
            "why": "it speaks ACP, so its steps and questions are seen",
            "version": "1.4.2",
        }


async def work(prompt: str, turn: Turn) -> TurnResult:
    """Run one turn."""
    if "say:" in prompt:
        return await repeat(prompt.partition("say:")[2], turn)
    if "clock" in prompt:
        await turn.ask(Question(text="May it go on?", choices=ALWAYS, kind="execute", command="make release"))
        return TurnResult(text=str(time.time()))
    await think(turn)
    await plan(turn, 0)
    await use(
        turn,
        "t1",
        "Read",
        "Read src/worker.py",
        "read",
        {"path": "src/worker.py"},
        "412 lines",
        locations=("src/worker.py",),
    )
    await plan(turn, 1)
    if "hold" in prompt:
        half = len(THOUGHT) // 2
        await turn.emit(ThoughtDelta(thought_id="h2", offset=0, text=THOUGHT[:half]))
        await turn.emit(ToolExecStart(tool="Bash", tool_call_id="slow", title="pytest tests/unit", tool_kind="execute"))
        await turn.emit(ThoughtDelta(thought_id="h2", offset=half, text=THOUGHT[half:]))
        await turn.ask("Shall it go on?", ("Go on", "Stop"))
        await turn.emit(ToolExecEnd(tool="Bash", tool_call_id="slow", duration=2.5, result="88 passed"))
    await use(
        turn, "t2", "Edit", "Edit src/worker.py", "edit", {"path": "src/worker.py", "replace": "2.0**failures"}, None,
        diffs=({"path": "src/worker.py", "patch": PATCH, "added": 3, "removed": 1, "cut": False},
               {"path": "docs/history.md", "patch": LONG, "added": 60, "removed": 60, "cut": True}),
    )  # fmt: skip
    await plan(turn, 2)
    failed = "FAILED tests/unit/test_worker.py::test_a_lost_connection - TimeoutError\n1 failed, 87 passed in 3.1 s"
    await use(
        turn, "t3", "Bash", "pytest tests/unit/test_worker.py", "execute", {"command": "pytest"}, failed, bad=True
    )
    if "asks" in prompt:
        await ask_all(turn)
    await use(
        turn, "t4", "Bash", "pytest tests/unit/test_worker.py", "execute", {"command": "pytest"}, "88 passed in 3.0 s"
    )
    await turn.emit(LlmRequest(model="large-4", messages_count=9, request_id="r1"))
    used = {"input_tokens": 48_210, "output_tokens": 2_904, "cost_usd": 0.2113} if "untold" not in prompt else None
    await turn.emit(LlmResponse(model="large-4", usage=used, finish_reason="stop", request_id="r1"))
    await plan(turn, 4)
    await turn.emit(MessageDelta(message_id=message_id(turn), offset=0, text=ANSWER))
    return TurnResult(text=ANSWER, usage=USED if "untold" not in prompt else Usage())


async def ask_all(turn: Turn) -> None:
    """Ask about a command, a change, and a plain question."""
    command = "git push --force-with-lease origin release/0.2 && gh release create v0.2.0 --notes-file NOTES.md"
    publish = Question(
        text="Publish the release?", choices=ALWAYS, kind="execute", tool="Bash", command=command, risk="high"
    )
    write = Question(
        text="Write src/worker.py?", choices=ALWAYS, kind="edit", tool="Edit", paths=("src/worker.py",), diff=PATCH,
        risk="medium",
    )  # fmt: skip
    await turn.ask(publish)
    await turn.ask(write)
    await turn.ask("Which name shall the branch have?", ("release/0.2", "release/next", "none of them"))


async def think(turn: Turn) -> None:
    third = len(THOUGHT) // 3
    for start in range(0, len(THOUGHT), third):
        await turn.emit(ThoughtDelta(thought_id="h1", offset=start, text=THOUGHT[start : start + third]))
    await turn.emit(ThoughtUpdate(thought_id="h1", text=THOUGHT))


async def plan(turn: Turn, done: int) -> None:
    """Emit the plan with so many entries completed."""
    states = ["completed"] * done + ["in_progress"] + ["pending"] * len(PLAN)
    entries = [
        {"content": content, "status": status, "priority": "high" if "tests" in content else "medium"}
        for content, status in zip(PLAN, states, strict=False)
    ]
    await turn.emit(PlanUpdate(entries=tuple(entries)))


async def use(
    turn: Turn, call: str, tool: str, title: str, kind: str, arguments: Any, result: str | None, *, bad: bool = False,
    locations: tuple[str, ...] = (), diffs: tuple[Mapping[str, Any], ...] = (),
) -> None:  # fmt: skip
    """Use a tool from its start to its end."""
    start = ToolExecStart(
        tool=tool, arguments=arguments, tool_call_id=call, title=title, tool_kind=kind, locations=locations
    )
    await turn.emit(start)
    await turn.emit(ToolExecEnd(tool=tool, tool_call_id=call, duration=0.4, is_error=bad, result=result, diffs=diffs))


async def repeat(text: str, turn: Turn) -> TurnResult:
    """Emit the text in every place where an agent can emit text."""
    line = text.replace("\n", " ")
    await turn.emit(ThoughtDelta(thought_id="x", offset=0, text=text))
    await turn.emit(PlanUpdate(entries=({"content": text, "status": line, "priority": line}, {"content": None})))
    await use(turn, line, line, text, line, {line: text}, text, locations=(line,))
    patch = f"--- a/{line}\n+++ b/{line}\n@@ -1 +1 @@ {line}\n-{line}\n+{line}\n"
    await use(
        turn,
        "d",
        text,
        text,
        "edit",
        text,
        text,
        bad=True,
        diffs=({"path": line, "patch": patch, "added": 1, "removed": 1},),
    )
    await turn.emit(LoopError(stage=line, message=text))
    await turn.emit(LlmResponse(model=line, usage={"input_tokens": 1}))
    choices = (
        Choice(line, "allow_once"),
        Choice(f"{line} not", "reject_once"),
        Choice(f"always {line}", "allow_always"),
    )
    await turn.ask(
        Question(
            text=text,
            choices=choices,
            kind="edit",
            tool=line,
            command=line,
            paths=(line, text),
            diff=patch,
            risk="high",
        )
    )
    await turn.emit(ThoughtUpdate(thought_id="x", text=text))
    return TurnResult(text=text, usage=Usage(input_tokens=1, model=line))
