"""Tells what steps say as events of a turn, and keeps what matters for the turn's end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from midwatch.agents.base import message_id
from midwatch.agents.streams import steps
from midwatch.agents.streams.faults import Fault
from midwatch.agents.streams.reading import locations_of, title_of, tool_kind
from midwatch.base.text import cut
from midwatch.domain.agent import Turn
from midwatch.domain.event import (
    LlmResponse,
    LoopError,
    MessageDelta,
    MessageUpdate,
    PlanUpdate,
    ThoughtDelta,
    ThoughtUpdate,
    ToolExecEnd,
    ToolExecStart,
)

PAUSE = 0.05
"""Seconds between two live pieces of text."""
TEXT_LIMIT = 10_000_000
ARGUMENT_LIMIT = 4_000
DEPTH_LIMIT = 50
RESULT_LIMIT = 10_000
NOTE_LIMIT = 1_000
UNTOLD = "its result was not told"


class _Writing:
    """A text or thought that comes in pieces."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._parts: list[str] = []
        self._length = 0
        self._shown = 0
        self._new: list[str] = []

    def add(self, text: str) -> None:
        if self._length + len(text) <= TEXT_LIMIT:
            self._parts.append(text)
            self._new.append(text)
            self._length += len(text)

    def text(self) -> str:
        return "".join(self._parts)

    def news(self) -> tuple[int, str]:
        """What was not shown yet, and where it goes."""
        offset, text = self._shown, "".join(self._new)
        self._shown += len(text)
        self._new.clear()
        return offset, text


class StepEvents:
    """One turn's events. A text is told as a message once something follows it: the last one is the answer."""

    def __init__(self, turn: Turn) -> None:
        self.model: str | None = None
        self.thread: str | None = None
        self.denied: dict[str, None] = {}
        self.fault: Fault | None = None
        self.retry: steps.Retry | None = None
        """What the program waits for, when it tries again by itself."""
        self.done = False
        self.replies = 0
        self.own: list[steps.Spent] = []
        self.of_thread: steps.Spent | None = None
        self.answered: list[steps.Spent] = []
        self._turn = turn
        self._answer: str | None = None
        self._text: _Writing | None = None
        self._thought: _Writing | None = None
        self._ready: tuple[str, str] | None = None
        self._texts = self._thoughts = 0
        self._tools: dict[str, tuple[str, float]] = {}
        self._shown_at = 0.0

    @property
    def answer(self) -> str:
        """The text the turn ends with."""
        if self._answer is not None:
            return self._answer
        return self._ready[1] if self._ready else self._text.text() if self._text else ""

    async def tell(self, step: steps.Step) -> None:
        """Tell one step."""
        match step:
            case steps.TextPiece() | steps.Text() | steps.TextEnd():
                await self._write(step)
            case steps.ThoughtPiece() | steps.Thought():
                await self._think(step)
            case steps.ToolStart():
                await self._tool_start(step)
            case steps.ToolEnd():
                await self._tool_end(step)
            case steps.Plan() if step.entries:
                await self._turn.emit(PlanUpdate(entries=step.entries))
            case steps.Reply():
                await self._reply(step)
            case steps.Retry():
                self.retry = step
                await self.complain("llm", step.message)
                return
            case steps.Note() if step.message:
                await self.complain("agent", step.message)
            case steps.Denied() if step.tool not in self.denied:
                self.denied[step.tool] = None
                await self.complain("permission", f"{step.tool} was not allowed")
            case _:
                await self._mark(step)
        if not isinstance(step, steps.Note):
            self.retry = None

    async def complain(self, stage: str, message: str) -> None:
        """Something went wrong and the turn goes on."""
        await self._turn.emit(LoopError(stage=stage, message=cut(message, NOTE_LIMIT)))

    def due(self) -> float | None:
        """Seconds until pieces should be shown; None when there are none."""
        writing = [one for one in (self._text, self._thought) if one is not None and one._new]
        return max(0.0, self._shown_at + PAUSE - time.monotonic()) if writing else None

    async def show(self) -> None:
        """Show the pieces that have come."""
        self._shown_at = time.monotonic()
        if self._text is not None:
            offset, text = self._text.news()
            if text:
                await self._turn.emit(MessageDelta(message_id=self._text.name, offset=offset, text=text))
        if self._thought is not None:
            offset, text = self._thought.news()
            if text:
                await self._turn.emit(ThoughtDelta(thought_id=self._thought.name, offset=offset, text=text))

    async def end(self) -> None:
        """There is no more: close what is open. Of a turn without a result, what was written is kept."""
        await self._end_thought()
        await self._end_text()
        for number in list(self._tools):
            await self._tool_end(steps.ToolEnd(id=number, result=UNTOLD, is_error=True))
        if not self.done or (self._ready is not None and self._ready[1].strip() != self.answer.strip()):
            await self._tell_ready()

    async def _mark(self, step: steps.Step) -> None:
        """What is kept rather than told."""
        match step:
            case steps.Thread() if step.id:
                self.thread = step.id
                await self._turn.keep_thread(step.id)
            case steps.Model() if step.name:
                self.model = step.name
            case steps.Spent():
                if step.of_thread:
                    self.of_thread = step
                else:
                    self.own.append(step)
            case steps.Failed():
                self.fault = step.fault
            case steps.Done():
                self.done, self.fault = True, None
                self._answer = step.text if step.text is not None else self._answer

    async def _write(self, step: steps.TextPiece | steps.Text | steps.TextEnd) -> None:
        if isinstance(step, steps.TextEnd):
            await self._end_text()
            return
        if not step.text:
            return
        await self._end_thought()
        await self._tell_ready()
        if self._text is None:
            self._text = _Writing(f"{message_id(self._turn)}.{self._texts}")
            self._texts += 1
        if isinstance(step, steps.Text):
            await self.show()
            self._ready = (self._text.name, step.text[:TEXT_LIMIT])
            self._text = None
            return
        self._text.add(step.text)
        if self.due() == 0.0:
            await self.show()

    async def _end_text(self) -> None:
        if self._text is not None:
            await self.show()
            self._ready = (self._text.name, self._text.text())
            self._text = None

    async def _tell_ready(self) -> None:
        """A text that was not the last one is a message."""
        if self._ready is not None:
            (name, text), self._ready = self._ready, None
            await self._turn.emit(MessageUpdate(message_id=name, role="agent", message=text))

    async def _think(self, step: steps.ThoughtPiece | steps.Thought) -> None:
        if not step.text:
            return
        if self._thought is None:
            self._thought = _Writing(f"{message_id(self._turn)}.t{self._thoughts}")
            self._thoughts += 1
        if isinstance(step, steps.Thought):
            name, self._thought = self._thought.name, None
            await self._turn.emit(ThoughtUpdate(thought_id=name, text=step.text[:TEXT_LIMIT]))
            return
        self._thought.add(step.text)
        if self.due() == 0.0:
            await self.show()

    async def _end_thought(self) -> None:
        if self._thought is not None:
            thought, self._thought = self._thought, None
            await self._turn.emit(ThoughtUpdate(thought_id=thought.name, text=thought.text()))

    async def _tool_start(self, step: steps.ToolStart) -> None:
        if step.id in self._tools:
            return
        await self._end_thought()
        await self._end_text()
        await self._tell_ready()
        self._tools[step.id] = (step.name, time.monotonic())
        told = ToolExecStart(
            tool=step.name,
            arguments=shortened(step.arguments),
            tool_call_id=step.id,
            title=step.title or title_of(step.name, step.arguments),
            tool_kind=tool_kind(step.name),
            locations=step.locations or locations_of(step.arguments),
        )
        await self._turn.emit(told)

    async def _tool_end(self, step: steps.ToolEnd) -> None:
        known = self._tools.pop(step.id, None)
        if known is None:
            return
        name, begun = known
        spent = time.monotonic() - begun if step.seconds is None else step.seconds
        told = ToolExecEnd(
            tool=name,
            tool_call_id=step.id,
            duration=round(spent, 6),
            for_llm_len=len(step.result),
            is_error=step.is_error,
            result=cut(step.result, RESULT_LIMIT),
            diffs=step.diffs,
        )
        await self._turn.emit(told)

    async def _reply(self, step: steps.Reply) -> None:
        self.replies += 1
        self.model = step.model or self.model
        figures = {"input_tokens": step.input_tokens, "output_tokens": step.output_tokens}
        known = {name: value for name, value in figures.items() if value is not None}
        self.answered.append(steps.Spent(input_tokens=step.input_tokens, output_tokens=step.output_tokens))
        told = LlmResponse(model=step.model or self.model, usage=known or None, finish_reason=step.finish_reason)
        await self._turn.emit(told)


def shortened(value: Any, depth: int = 0) -> Any:
    """A tool's arguments, whose long texts are cut, and what lies too deep."""
    if isinstance(value, str):
        return cut(value, ARGUMENT_LIMIT)
    if not isinstance(value, Mapping | list):
        return value
    if depth == DEPTH_LIMIT:
        return "…"
    if isinstance(value, Mapping):
        return {key: shortened(one, depth + 1) for key, one in value.items()}
    return [shortened(one, depth + 1) for one in value]
