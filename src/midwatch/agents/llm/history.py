"""Builds the messages for the model from stored steps, and cuts them to the size of the model's context window.

A step is JSON data of one of these kinds: `prompt` begins a turn, `said` is text of people or of midwatch during the
turn, `model` is an answer of the model, `started` means that a tool may have run, `tool` is the result of a tool call.
The same code handles stored and new steps, so a resumed turn continues where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from midwatch.agents.llm.handoff_messages import to_model_messages
from midwatch.base.errors import AgentError
from midwatch.base.text import cut

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse, ToolCallPart, ToolReturnPart
    from pydantic_ai.usage import RequestUsage

Json = dict[str, Any]

NOT_RUN = "This tool was not run, because the turn ended first."
SHORTENED = 300  # characters that remain of a tool's result when old results are shortened
CHARACTERS = 4.0  # characters per token, until a model has reported its count
ROOM = 0.75  # part of the window that is filled after trimming, so that not every step must trim
OVERHEAD = 30  # characters that are added to the text of each part


class Call(NamedTuple):
    """A tool call in the last answer. `place` is its position there; the ids of calls are not always unique."""

    place: int
    part: ToolCallPart

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.part.tool_name

    def change(self, arguments: Mapping[str, Any]) -> Call:
        """Return the call with the arguments that hooks have changed."""
        return Call(self.place, replace(self.part, args=dict(arguments)))


class Transcript:
    """A conversation so far, with the open tool calls and the messages that the model has not got yet."""

    def __init__(self, earlier: Iterable[Sequence[Json]] = (), own: Iterable[Json] = ()) -> None:
        """Read the steps of earlier turns, one list for each turn, and the steps `own` of the current turn."""
        self.turns: list[list[ModelMessage]] = []  # the messages of each turn; the last is the current turn
        self.response: ModelResponse | None = None  # the last answer in this turn
        self.requests = 0  # the number of answers in this turn
        self.closing = False  # whether the next answer must be the last, without tools
        self.final: str | None = None  # the result, if a tool call gave it
        self.refused = 0  # number of results with a wrong form
        self.begun = False  # whether the current turn has its prompt
        self.turn: str | None = None
        """The id of the task that began the current turn. All steps of the turn have this id."""
        self.task_id: str | None = None  # the task of the last answer
        self._closed = False
        self._before = False
        self._usages: list[tuple[str, RequestUsage]] = []
        self._calls: list[ToolCallPart] = []
        self._started: set[int] = set()
        self._returned: dict[int, ToolReturnPart] = {}
        self._parts: list[ModelRequestPart] = []
        self._stop: Json | None = None  # the task that a hook stops after a tool, and the reason
        self._begin()
        for turn in earlier:
            for step in turn:
                self.add(step)
            self._close_turn()
            self._begin()
        for step in own:
            self.add(step)

    # -- steps ---------------------------------------------------------------------------------------------------

    def add(self, step: Json) -> None:
        """Add one step to the conversation."""
        self.turn = step["turn"]
        match step["kind"]:
            case "prompt":
                if self.begun:  # the same task again, from its beginning
                    del self.turns[-2 if self._before else -1 :]
                    self._begin()
                self.begun = True
                self._before = bool(step.get("before"))
                if self._before:  # the messages of the handoff form a separate turn
                    self.turns[-1] += to_model_messages(step["before"])
                    self.turns.append([])
                self._parts += read_parts(step["request"])
            case "said":
                self.final = None
                self.closing = self.closing or step.get("closing", False)
                self.refused += step.get("refused", False)
                self._parts += read_parts(step["request"])
            case "model":
                self._add_answer(step["response"], step["task"])
            case "started":
                self._started.add(step["call"])
                if (arguments := step.get("arguments")) is not None:  # a hook changed the call before it ran
                    self._calls[step["call"]] = replace(self._calls[step["call"]], args=arguments)
            case "tool":
                self.final = step.get("final", self.final)
                self.refused += step.get("refused", False)
                self._stop = step.get("stop", self._stop)
                self._returned[step["call"]] = read_parts(step["request"])[0]

    def _begin(self) -> None:
        if not self.turns or self.turns[-1]:
            self.turns.append([])
        self.begun, self.turn = False, None
        self.response, self.final = None, None
        self.requests, self.refused, self.closing, self._closed = 0, 0, False, False
        self._calls, self._started, self._returned, self._parts = [], set(), {}, []
        self._stop = None

    def _add_answer(self, data: Json, task_id: str) -> None:
        from pydantic_ai.messages import ModelRequest

        self.response, self.task_id, self._closed = _read(data), task_id, self.closing
        self._usages.append((task_id, self.response.usage))
        self.requests += 1
        self.turns[-1] += [ModelRequest(parts=self._unsent()), self.response]
        self._calls = list(self.response.tool_calls)
        self._started, self._returned, self._parts = set(), {}, []

    def _close_turn(self) -> None:
        """End a turn. Each open tool call gets a result that says that the tool was not run."""
        from pydantic_ai.messages import ToolReturnPart

        for call in self.open_calls():
            part = ToolReturnPart(call.name, NOT_RUN, call.part.tool_call_id, outcome="interrupted")
            self._returned[call.place] = part
        self.turns[-1] += self.last()

    def _unsent(self) -> list[ModelRequestPart]:
        """Return the parts of the next request: first the tool results in the order of their calls, then the texts."""
        return [*(self._returned[place] for place in sorted(self._returned)), *self._parts]

    # -- open calls and the last answer --------------------------------------------------------------------------

    def open_calls(self) -> Iterator[Call]:
        """Yield the tool calls of the last answer that have no result, in order."""
        for place, part in enumerate(self._calls):
            if place not in self._returned:
                yield Call(place, part)

    def find_transfer(self, names: frozenset[str]) -> Call | None:
        """Return the successful call of one of the tools `names` in the last answer, or None."""
        for place, part in enumerate(self._calls):
            result = self._returned.get(place)
            if result is not None and part.tool_name in names and result.outcome == "success":
                return Call(place, part)
        return None

    def find_stop(self, task_id: str) -> str | None:
        """Return why a hook stops this task after a tool, or None. A later task may go on with the result."""
        return self._stop["reason"] if self._stop is not None and self._stop["task"] == task_id else None

    def may_have_run(self, call: Call) -> bool:
        """Return whether a tool call may have run already."""
        return call.place in self._started

    @property
    def has_results(self) -> bool:
        """Whether a tool call in the last answer has a result."""
        return bool(self._returned)

    @property
    def complete(self) -> bool:
        """Whether the model has given its final answer and there is no later message."""
        if self.response is None or self._parts:
            return False
        return not self._calls or self._closed or self.final is not None

    @property
    def text(self) -> str:
        """The text of the last answer."""
        return (self.response.text if self.response is not None else None) or ""

    def usages(self, task_id: str) -> list[RequestUsage]:
        """Return the usage of each model answer that was given for a task."""
        return [usage for owner, usage in self._usages if owner == task_id]

    def last(self) -> list[ModelMessage]:
        """Return the parts that were not sent to the model yet, as a list of one message, or an empty list."""
        from pydantic_ai.messages import ModelRequest

        unsent = self._unsent()
        return [ModelRequest(parts=unsent)] if unsent else []


def select_newest(steps: Iterable[Json], most: float) -> tuple[list[list[Json]], int]:
    """Return the steps of the newest turns, one list for each turn, and the number of steps that are left out.

    The returned turns have at most about `most` characters, because a conversation may last for months. Turns are in
    the order in which they began, also if a turn was resumed after later turns.
    """
    turns: dict[str, list[Json]] = {}
    for step in steps:
        turns.setdefault(step["turn"], []).append(step)
    newest_turns: list[list[Json]] = []
    length = left_out = 0
    for turn in reversed(turns.values()):
        length += len(json.dumps(turn)) if not left_out else 0
        if left_out or turn[0]["kind"] != "prompt" or (newest_turns and length > most):
            left_out += len(turn)
        else:
            newest_turns.append(turn)
    return newest_turns[::-1], left_out


# -- steps as data -----------------------------------------------------------------------------------------------


def make_request(*parts: ModelRequestPart) -> Json:
    """Return a model request with these parts as JSON data."""
    from pydantic_ai.messages import ModelRequest

    return _data(ModelRequest(parts=list(parts)))


def make_text_step(text: str, kind: str = "said", **more: Any) -> Json:
    """Return a step that contains a text for the model."""
    from pydantic_ai.messages import UserPromptPart

    return {"kind": kind, "request": make_request(UserPromptPart(text)), **more}


def make_answer_step(response: ModelResponse, task_id: str) -> Json:
    """Return a step that contains a model's answer."""
    return {"kind": "model", "response": _data(response), "task": task_id}


def make_started_step(call: Call, changed: bool) -> Json:
    """Return a step that says that a tool may have run; if a hook changed the arguments, with these arguments."""
    return {"kind": "started", "call": call.place, **({"arguments": call.part.args} if changed else {})}


def make_result_step(call: Call, text: str, outcome: Any = "success", **more: Any) -> Json:
    """Return a step that contains the result of a tool call."""
    from pydantic_ai.messages import ToolReturnPart

    part = ToolReturnPart(call.name, text, call.part.tool_call_id, outcome=outcome)
    return {"kind": "tool", "call": call.place, "request": make_request(part), **more}


def read_parts(data: Json) -> list[Any]:
    """Return the parts of a stored request."""
    return list(_read(data).parts)


def _data(message: ModelMessage) -> Json:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    messages: list[Json] = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    return messages[0]


def _read(data: Json) -> Any:
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    try:
        return ModelMessagesTypeAdapter.validate_json(json.dumps([data]))[0]
    except ValueError as problem:
        raise AgentError(
            "this conversation cannot be read, because another version of pydantic-ai stored it; "
            "install that version, or begin a new session."
        ) from problem


# -- the window --------------------------------------------------------------------------------------------------


class Window:
    """Selects the messages of a transcript that fit into the model's context window.

    A message that was left out once is left out of all later requests. The stored steps do not change.
    """

    def __init__(self, tokens: int | None, reserve: int, overhead: int) -> None:
        self._limit = None if tokens is None else max(tokens - reserve, tokens // 2)
        self._overhead = overhead
        self._dropped = 0  # number of earlier turns that are left out
        self._short = 0  # number of earlier turns, from the oldest on, whose tool results are shortened
        self._own = False  # whether the results of the current turn are shortened, too
        self._characters = CHARACTERS
        self._sent = 0
        self._sizes: list[tuple[int, int]] = []
        """The size of each earlier turn in characters: complete, and with shortened tool results."""

    def view(self, talk: Transcript) -> list[ModelMessage]:
        """Return the messages for the next request."""
        messages: list[ModelMessage] = []
        for number, turn in enumerate(talk.turns[:-1]):
            if number >= self._dropped:
                messages += map(_shorten, turn) if number < self._short else turn
        own = talk.turns[-1]
        messages += map(_shorten, own) if self._own else own
        return messages + talk.last()

    def fit(self, talk: Transcript) -> tuple[int, int] | None:
        """Leave out or shorten messages if the next request is too long for the window.

        Return how many messages were left out and how many remain, or None if nothing was left out.
        """
        self._sent = self._size(talk)
        if self._limit is None or self._sent / self._characters <= self._limit:
            return None
        return self._trim(talk, self._limit * ROOM * self._characters)

    def make_room(self, talk: Transcript) -> tuple[int, int] | None:
        """Leave out more messages, because the model refused a request as too long.

        Return the same as `fit`; None if nothing more can be left out.
        """
        return self._trim(talk, self._size(talk) * ROOM)

    def note_tokens(self, tokens: int) -> None:
        """Note how many tokens the model counted in the last request, to estimate the size of later requests."""
        if tokens > 100:
            self._characters = min(CHARACTERS, max(1.0, self._sent / tokens))

    def _trim(self, talk: Transcript, most: float) -> tuple[int, int] | None:
        before, size = len(self.view(talk)), self._size(talk)
        remaining = size
        for saved in self._trim_more(talk):
            remaining -= saved
            if remaining <= most:
                break
        after = len(self.view(talk))
        return (before - after, after) if remaining < size else None

    def _trim_more(self, talk: Transcript) -> Iterator[int]:
        """Leave out a little more at each step, and yield the number of characters that the step saved.

        First the tool results of old turns are shortened, then old turns are left out, then the tool results of this
        turn are shortened.
        """
        while self._short < len(self._sizes):
            whole, short = self._sizes[self._short]
            self._short += 1
            yield whole - short
        while self._dropped < len(self._sizes):
            self._dropped += 1
            yield self._sizes[self._dropped - 1][1]
        if not self._own:
            self._own = True
            yield sum(map(_size, talk.turns[-1])) - sum(map(_size, map(_shorten, talk.turns[-1])))

    def _size(self, talk: Transcript) -> int:
        """Return the size of the next request in characters."""
        for turn in talk.turns[len(self._sizes) : -1]:
            self._sizes.append((sum(map(_size, turn)), sum(map(_size, map(_shorten, turn)))))
        size = self._overhead + sum(map(_size, talk.last()))
        for number, (whole, short) in enumerate(self._sizes):
            if number >= self._dropped:
                size += short if number < self._short else whole
        return size + sum(map(_size, map(_shorten, talk.turns[-1]) if self._own else talk.turns[-1]))


def _shorten(message: ModelMessage) -> ModelMessage:
    """Return the message with its tool results shortened."""
    from pydantic_ai.messages import ModelRequest, ToolReturnPart

    if not isinstance(message, ModelRequest) or not any(isinstance(part, ToolReturnPart) for part in message.parts):
        return message
    parts: list[Any] = list(message.parts)
    shorter = [
        replace(part, content=cut(part.content, SHORTENED))
        if isinstance(part, ToolReturnPart) and isinstance(part.content, str)
        else part
        for part in parts
    ]
    return replace(message, parts=shorter)


def _size(message: ModelMessage) -> int:
    """Return the approximate number of characters of a message."""
    size = 0
    for part in message.parts:
        content = getattr(part, "content", None) or getattr(part, "args", None) or ""
        size += OVERHEAD + len(content if isinstance(content, str) else str(content))
    return size
