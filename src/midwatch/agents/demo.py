"""Kind `demo`: a built-in agent that needs nothing and uses no model.

It shows what an agent can do. These words in the prompt make it do more: `demo:ask`, `demo:fail`, `demo:transient`,
`demo:crash`, `demo:hang`, `demo:silent`, `demo:sleep=SECONDS`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Any, Unpack

from midwatch.agents.base import BaseAgent, KindOptions, SharedSettings, message_id
from midwatch.agents.function import OnLoop
from midwatch.base.errors import AgentError, TransientError
from midwatch.base.text import cut
from midwatch.domain.agent import AgentTerms, Turn, TurnResult
from midwatch.domain.event import MessageDelta, TaskProgress, ToolExecEnd, ToolExecStart
from midwatch.domain.session import Session

DIRECTIVE = re.compile(r"(?<!\S)demo:(ask|fail|transient|crash|hang|silent|sleep=(\d{1,6}(?:\.\d+)?))(?!\S)")
STREAMING = 1.0  # seconds that the reply takes
PROMPT_SHOWN = 200


class DemoOptions(KindOptions):
    """Options of kind `demo`. There are none."""


class DemoAgent(BaseAgent):
    """The demo agent. It runs on the event loop and costs nothing."""

    kind = "demo"
    terms = AgentTerms(timeout_seconds=1800.0, on_crash="rerun", slots=16, threads=False, reports=())

    def __init__(self, name: str, *, streaming: float = STREAMING, **shared: Unpack[SharedSettings]) -> None:
        super().__init__(name, **shared)
        self._streaming = streaming

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], **shared: Unpack[SharedSettings]) -> DemoAgent:
        """Return the agent that `[agents.NAME]` describes."""
        DemoOptions.read(name, options)
        shared["description"] = shared.get("description") or "built in; shows how midwatch works, not intelligent"
        return cls(name, **shared)

    async def open(self, session: Session) -> OnLoop:
        """Open a conversation."""
        return OnLoop(partial(perform, streaming=self._streaming))

    def describe(self) -> Mapping[str, Any]:
        """Return `target`, a text that says that the agent is built in."""
        return {"target": "built in"}


async def perform(prompt: str, turn: Turn, streaming: float = STREAMING) -> TurnResult:
    """Work on one prompt as the demo agent and return the result. The answer is shown over `streaming` seconds."""
    directives = {word.partition("=")[0]: number for word, number in DIRECTIVE.findall(prompt)}
    if "fail" in directives:
        raise AgentError("the demo was told to fail; remove demo:fail from the prompt and retry")
    if "transient" in directives and turn.attempt <= 1:
        raise TransientError("the demo was told to fail once; the next attempt will succeed")
    if "crash" in directives:
        raise RuntimeError("the demo was told to crash; remove demo:crash from the prompt and retry")
    clock, words = await _use_tools(prompt, turn)
    if "hang" in directives:
        await turn.emit(TaskProgress(text="hanging until interrupted"))
        await asyncio.Event().wait()
    if "sleep" in directives:
        await _sleep(float(directives["sleep"]), turn)
    answer = await turn.ask("The demo would like to go on. May it?") if "ask" in directives else None
    text = _reply(prompt, clock, words, f"{answer.choice or answer.status}" if answer else None)
    await _stream(text, turn, streaming)
    return TurnResult(text=text, outcome="silent" if "silent" in directives else "ok", iterations=1)


def _reply(prompt: str, clock: str, words: str, answer: str | None) -> str:
    lines = [
        "This is the demo agent: it is built in, uses no model and knows nothing.",
        f"You asked: {cut(DIRECTIVE.sub('', prompt).strip() or prompt, PROMPT_SHOWN)}",
        f"It used two tools: read_clock said {clock}, count_words said {words}.",
    ]
    if answer is not None:
        lines.append(f"It asked whether it may go on, and the answer was: {answer}.")
    lines.append("For real work, install an agent such as claude or codex and name it with --agent,")
    lines.append("or describe your own under [agents.NAME] in midwatch.toml. `midwatch agents` lists what there is.")
    return "\n".join(lines)


async def _use_tools(prompt: str, turn: Turn) -> tuple[str, str]:
    clock = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    words = str(len(prompt.split()))
    await _tool(turn, "read_clock", {}, clock)
    await _tool(turn, "count_words", {"text": cut(prompt, PROMPT_SHOWN)}, words)
    return clock, words


async def _tool(turn: Turn, tool: str, arguments: Mapping[str, Any], result: str) -> None:
    began = monotonic()
    await turn.emit(ToolExecStart(tool=tool, arguments=arguments, tool_call_id=tool))
    await asyncio.sleep(0)
    duration = round(monotonic() - began, 6)
    await turn.emit(
        ToolExecEnd(tool=tool, tool_call_id=tool, duration=duration, for_llm_len=len(result), result=result)
    )


async def _sleep(seconds: float, turn: Turn) -> None:
    ends = monotonic() + seconds
    while (left := ends - monotonic()) > 0:
        await turn.emit(TaskProgress(text=f"{left:.0f} s to go", percent=round(100 * (1 - left / seconds), 1)))
        await asyncio.sleep(min(1.0, left))


async def _stream(text: str, turn: Turn, seconds: float) -> None:
    offset = 0
    pieces = re.findall(r"\S+\s*", text)
    for piece in pieces:
        await turn.emit(MessageDelta(message_id=message_id(turn), offset=offset, text=piece))
        offset += len(piece)
        await asyncio.sleep(seconds / len(pieces))
