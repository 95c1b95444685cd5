"""Emits the steps of a program as events of a turn, and collects the data for the result of the turn."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from midwatch.agents.base import message_id
from midwatch.agents.live_text import LiveText
from midwatch.agents.streams import steps
from midwatch.agents.streams.faults import Fault
from midwatch.agents.streams.reading import find_paths, make_title
from midwatch.base.text import cut
from midwatch.domain import event as events
from midwatch.domain.agent import Turn
from midwatch.domain.tool_name import guess_kind

PAUSE = 0.05  # seconds between two live pieces of text
TEXT_LIMIT = 10_000_000
ARGUMENT_LIMIT = 4_000
DEPTH_LIMIT = 50
RESULT_LIMIT = 10_000
NOTE_LIMIT = 1_000
NO_RESULT = "the program reported no result for this call"


class StepEvents:
    """Emits the events of one turn. A text becomes a message when another text or a tool call follows it.

    The last text is the answer of the turn.
    """

    def __init__(self, turn: Turn) -> None:
        self.model: str | None = None
        self.thread: str | None = None
        self.denied: dict[str, None] = {}
        self.fault: Fault | None = None
        self.retry: steps.Retry | None = None  # the retry that the program waits for, if it retries by itself
        self.retries_since = 0.0  # when the first of these retries began
        self.failed = False  # whether the program reported a failure
        self.done = False
        self.said = ""  # all texts of the turn
        self.left_open = 0  # tool calls whose result was not reported
        self.replies = 0
        self.own: list[steps.Spent] = []
        self.of_thread: steps.Spent | None = None
        self.answered: list[steps.Spent] = []
        self._turn = turn
        self._answer: str | None = None
        self._text: LiveText | None = None
        self._thought: LiveText | None = None
        self._ready: tuple[str, str] | None = None  # the id and the content of the last text, which may be the answer
        self._texts, self._thoughts = count(), count()
        self._tools: dict[str, tuple[str, float]] = {}
        self._shown_at = 0.0

    @property
    def answer(self) -> str:
        """The answer of the turn."""
        if self._answer is not None:
            return self._answer
        return self._ready[1] if self._ready else self._text.full_text() if self._text else ""

    @property
    def has_answer(self) -> bool:
        """Whether the program printed an answer in its result. The answer may be empty."""
        return self._answer is not None

    async def emit(self, step: steps.Step) -> None:
        """Emit the event for one step, or store the data of the step."""
        match step:
            case steps.TextPiece() | steps.Text():
                await self._add_text(step)
            case steps.TextEnd():
                await self._end_text()
            case steps.ThoughtPiece() | steps.Thought():
                await self._add_thought(step)
            case steps.ToolStart():
                await self._start_tool(step)
            case steps.ToolEnd():
                await self._end_tool(step)
            case steps.Plan() if step.entries:
                await self._turn.emit(events.PlanUpdate(entries=step.entries))
            case steps.Reply():
                await self._add_reply(step)
            case steps.Retry():
                self.retries_since = self.retries_since if self.retry else time.monotonic()
                self.retry = step
                await self.complain("llm", step.message)
                return
            case steps.Note() if step.message:
                await self.complain("agent", step.message)
            case steps.Denied() if step.tool not in self.denied:
                self.denied[step.tool] = None
                await self.complain("permission", f"{step.tool} was not allowed")
            case _:
                await self._remember(step)
        if not isinstance(step, steps.Note):
            self.retry = None

    async def complain(self, stage: str, message: str) -> None:
        """Emit an error that does not end the turn."""
        await self._turn.emit(events.LoopError(stage=stage, message=cut(message, NOTE_LIMIT)))

    def due(self) -> float | None:
        """Return the seconds until new text must be shown; None if there is no new text."""
        if not any(live is not None and live.has_news for live in (self._text, self._thought)):
            return None
        return max(0.0, self._shown_at + PAUSE - time.monotonic())

    async def show(self) -> None:
        """Emit live events for the text that has arrived since the last call."""
        self._shown_at = time.monotonic()
        for live in (self._text, self._thought):
            if live is not None and (delta := live.take_delta()):
                await self._turn.emit(delta)

    async def end(self) -> None:
        """Emit the events that end open texts and tool calls, because the output has ended.

        If the last text is not the answer, emit it as a message.
        """
        await self._end_thought()
        await self._end_text()
        self.left_open = len(self._tools)
        for id in list(self._tools):
            await self._end_tool(steps.ToolEnd(id=id, result=NO_RESULT, is_error=True))
        if not self.done or (self._ready is not None and self._ready[1].strip() != self.answer.strip()):
            await self.emit_message()

    async def _remember(self, step: steps.Step) -> None:
        """Store the data of a step that has no event."""
        match step:
            case steps.Thread() if step.id:
                self.thread = step.id
                await self._turn.keep_thread(step.id)
            case steps.Model() if step.name:
                self.model = step.name
            case steps.Spent() if step.of_thread:
                self.of_thread = step
            case steps.Spent():
                self.own.append(step)
            case steps.Failed():
                self.fault, self.failed = step.fault, True
            case steps.Done():
                self.done, self.fault = True, None
                self._answer = step.text if step.text is not None else self._answer

    async def _add_text(self, step: steps.TextPiece | steps.Text) -> None:
        if not step.text:
            return
        await self._end_thought()
        await self.emit_message()
        if self._text is None:
            self._text = LiveText(f"{message_id(self._turn)}.{next(self._texts)}", TEXT_LIMIT)
        if isinstance(step, steps.Text):
            await self._end_text(step.text[:TEXT_LIMIT])
        else:
            self._text.add(step.text)
            await self._show_if_due()

    async def _end_text(self, whole: str | None = None) -> None:
        if self._text is not None:
            await self.show()
            text = self._text.full_text() if whole is None else whole
            self._ready, self._text = (self._text.id, text), None
            self.said = f"{self.said}\n{text}".lstrip("\n")[-TEXT_LIMIT:]

    async def emit_message(self) -> None:
        """Emit the finished text as a message, because it is not the answer of the turn."""
        if self._ready is not None:
            (id, text), self._ready = self._ready, None
            await self._turn.emit(events.MessageUpdate(message_id=id, role="agent", message=text))

    async def _add_thought(self, step: steps.ThoughtPiece | steps.Thought) -> None:
        if not step.text:
            return
        if self._thought is None:
            self._thought = LiveText(f"{message_id(self._turn)}.t{next(self._thoughts)}", TEXT_LIMIT, thought=True)
        if isinstance(step, steps.Thought):
            await self._end_thought(step.text[:TEXT_LIMIT])
        else:
            self._thought.add(step.text)
            await self._show_if_due()

    async def _end_thought(self, whole: str | None = None) -> None:
        if self._thought is not None:
            thought, self._thought = self._thought, None
            text = thought.full_text() if whole is None else whole
            await self._turn.emit(events.ThoughtUpdate(thought_id=thought.id, text=text))

    async def _show_if_due(self) -> None:
        if self.due() == 0.0:
            await self.show()

    async def _start_tool(self, step: steps.ToolStart) -> None:
        if step.id in self._tools:
            return
        await self._end_thought()
        await self._end_text()
        await self.emit_message()
        self._tools[step.id] = (step.name, time.monotonic())
        await self._turn.emit(events.ToolExecStart(
            tool=step.name, arguments=shorten(step.arguments), tool_call_id=step.id,
            title=step.title or make_title(step.name, step.arguments), tool_kind=guess_kind(step.name),
            locations=step.locations or find_paths(step.arguments),
        ))  # fmt: skip

    async def _end_tool(self, step: steps.ToolEnd) -> None:
        if step.id not in self._tools:
            return
        name, began = self._tools.pop(step.id)
        duration = time.monotonic() - began if step.seconds is None else step.seconds
        await self._turn.emit(events.ToolExecEnd(
            tool=name, tool_call_id=step.id, duration=round(duration, 6), for_llm_len=len(step.result),
            is_error=step.is_error, result=cut(step.result, RESULT_LIMIT), diffs=step.diffs,
        ))  # fmt: skip

    async def _add_reply(self, step: steps.Reply) -> None:
        self.replies += 1
        self.model = step.model or self.model
        figures = {"input_tokens": step.input_tokens, "output_tokens": step.output_tokens}
        reported = {name: value for name, value in figures.items() if value is not None}
        self.answered.append(steps.Spent(input_tokens=step.input_tokens, output_tokens=step.output_tokens))
        await self._turn.emit(
            events.LlmResponse(model=self.model, usage=reported or None, finish_reason=step.finish_reason)
        )


def shorten(value: Any, depth: int = 0) -> Any:
    """Return a tool's arguments with long texts cut and deeply nested values replaced by `…`."""
    if isinstance(value, str):
        return cut(value, ARGUMENT_LIMIT)
    if not isinstance(value, Mapping | list):
        return value
    if depth == DEPTH_LIMIT:
        return "…"
    if isinstance(value, Mapping):
        return {key: shorten(item, depth + 1) for key, item in value.items()}
    return [shorten(item, depth + 1) for item in value]
