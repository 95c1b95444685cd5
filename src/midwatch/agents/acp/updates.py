"""What an agent's session updates mean as events. Pure: it is told an update and returns what to emit.

Nothing is taken for granted: agents leave fields out, send kinds we do not know, name a tool call only when they ask
for leave to use it, or never say how it ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from midwatch.agents.patch import patch
from midwatch.agents.streams.reading import find_paths, guess_kind
from midwatch.domain.event import (
    AgentFault,
    LlmResponse,
    MessageDelta,
    MessageUpdate,
    Payload,
    PlanUpdate,
    TaskProgress,
    ThoughtDelta,
    ThoughtUpdate,
    ToolExecEnd,
    ToolExecStart,
)

Json = Mapping[str, Any]

LONGEST_TEXT = 1_000_000
"""Characters of one message or thought that are kept."""
LONGEST_RESULT = 20_000
LONGEST_ARGUMENT = 2_000
MOST_ITEMS = 50
MOST_ENTRIES = 200
MOST_TOOLS = 5000
"""Tool calls that are remembered; of more those that have ended are forgotten."""
TITLE_SHOWN = 500
OUTPUTS = ("formatted_output", "aggregated_output", "output", "content", "stdout", "stderr", "message", "error")
CHUNKS = ("agent_message_chunk", "agent_thought_chunk")
KINDS = frozenset(
    {"read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"}
)  # fmt: skip


@dataclass(slots=True)
class Tool:
    """One tool call, as far as it is known."""

    id: str
    name: str = ""
    title: str = ""
    kind: str = "other"
    arguments: Any = None
    locations: tuple[str, ...] = ()
    diffs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    result: str = ""
    started: float | None = None
    ended: bool = False
    wish: str | None = None
    """What leave was asked for."""
    denied: str | None = None

    @property
    def label(self) -> str:
        """What it does, in a few words."""
        return self.wish or self.title or self.name or self.kind


@dataclass(slots=True)
class _Text:
    """A message or a thought while it is written."""

    id: str
    parts: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    length: int = 0
    shown: int = 0
    left_out: int = 0
    message: str | None = None

    def add(self, text: str, message: str | None) -> None:
        if self.parts and message is not None and self.message is not None and message != self.message:
            text = "\n\n" + text
        self.message = message or self.message
        room = max(0, LONGEST_TEXT - self.length)
        self.left_out += max(0, len(text) - room)
        if kept := text[:room]:
            self.parts.append(kept)
            self.fresh.append(kept)
            self.length += len(kept)

    def news(self) -> tuple[int, str]:
        """What was added since this was asked last, and where it goes."""
        offset, text = self.shown, "".join(self.fresh)
        self.shown = self.length
        self.fresh.clear()
        return offset, text

    def whole(self) -> str:
        text = "".join(self.parts)
        return f"{text}\n… {self.left_out} characters left out …" if self.left_out else text


class Transcript:
    """Everything one turn's updates tell."""

    def __init__(
        self,
        message_id: str,
        asides: tuple[re.Pattern[str], ...] = (),
        told: set[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denied: list[Tool] = []
        self.tools: dict[str, Tool] = {}
        self.usage: dict[str, int] = {}
        self.model: str | None = None
        self.unknown: set[str] = set()
        """Kinds of updates that were not understood."""
        self._asides = asides
        self._told = set() if told is None else told
        self._clock = clock
        self._id = message_id
        self._said: _Text | None = None
        self._last = ""
        self._thought: _Text | None = None
        self._messages = self._thoughts = 0

    @property
    def text(self) -> str:
        """The answer: what was said after the last tool, or else before it."""
        return (self._said.whole() if self._said else "").strip() or self._last

    @property
    def spoke_last(self) -> bool:
        """Whether it said something after its last tool."""
        return self._said is not None and bool(self._said.whole().strip())

    @property
    def last_id(self) -> str:
        """The id of what is being said."""
        return self._said.id if self._said else self._id

    def update(self, told: Json, *, more: bool = False) -> list[Payload]:
        """One `session/update`. With `more`, others wait already: live text is held back to go together."""
        held = [] if told.get("sessionUpdate") in CHUNKS else self.show()  # what was said first is shown first
        made = [*held, *self._update(told)]
        return made if more else [*made, *self.show()]

    def show(self) -> list[Payload]:
        """Text that was held back."""
        made: list[Payload] = []
        if self._said is not None and self._said.fresh:
            offset, text = self._said.news()
            made.append(MessageDelta(message_id=self._said.id, offset=offset, text=text))
        if self._thought is not None and self._thought.fresh:
            offset, text = self._thought.news()
            made.append(ThoughtDelta(thought_id=self._thought.id, offset=offset, text=text))
        return made

    def asked(self, call: Json) -> tuple[Tool, list[Payload]]:
        """The agent asks for leave to use a tool, of which this may be the first word."""
        made = [*self._break()]
        if (known := self.tools.get(str(call.get("toolCallId")))) is not None and known.ended:
            del self.tools[known.id]  # another call with a used name: what was told of the first does not hold for it
        tool = self._know(call)
        return tool, [*made, *self._start(tool)]

    def refuse(self, tool: Tool, why: str) -> None:
        """It got no leave; how the call ended may never be told."""
        tool.denied = why
        self.denied.append(tool)

    def end(self, *, cut_off: bool = False) -> list[Payload]:
        """The turn is over: what is open is closed. The last message is left to the turn's result."""
        made = [*self.show(), *self._end_thought()]
        for tool in self.tools.values():
            if not tool.ended:
                made += self._start(tool)
                made += self._finish(tool, failed=cut_off, said="cut off when the turn ended" if cut_off else "")
        return made

    # -- kinds of updates ----------------------------------------------------------------------------------------

    def _update(self, told: Json) -> Iterator[Payload]:
        match told.get("sessionUpdate"):
            case "agent_message_chunk":
                yield from self._chunk(told)
            case "agent_thought_chunk":
                yield from self._think(_text(told.get("content")))
            case "plan" | "plan_update":
                yield from self._plan(told)
            case "tool_call" | "tool_call_update":
                yield from self._tool(told)
            case "user_message_chunk" | "available_commands_update" | "current_mode_update":
                pass
            case "config_option_update" | "session_info_update" | "usage_update" | "plan_removed":
                pass
            case other:
                self.unknown.add(str(other)[:50])

    def _chunk(self, told: Json) -> Iterator[Payload]:
        yield from self._usage(told)
        text = _text(told.get("content"))
        if not text:
            return
        if any(aside.fullmatch(text.strip()) for aside in self._asides):
            if text.startswith("Info:"):
                yield TaskProgress(text=text.strip()[:TITLE_SHOWN])
            elif text not in self._told:  # some agents say it in every turn
                self._told.add(text)
                yield AgentFault(message=text.strip()[:TITLE_SHOWN], level="warning")
            return
        yield from self._end_thought()
        if self._said is None:
            self._messages += 1
            self._said = _Text(f"{self._id}.{self._messages}")
        name = told.get("messageId")
        self._said.add(text, name if isinstance(name, str) else None)

    def _usage(self, told: Json) -> Iterator[Payload]:
        """Some agents tell with an empty piece of text what a model's answer took."""
        used = tokens(_mapping(_mapping(told.get("_meta")).get("usage")))
        if used:
            for name, count in used.items():
                self.usage[name] = self.usage.get(name, 0) + count
            yield LlmResponse(model=self.model, usage=used)

    def _think(self, text: str) -> Iterator[Payload]:
        if not text:
            return
        if self._thought is None:
            self._thoughts += 1
            self._thought = _Text(f"{self._id}.thought{self._thoughts}")
        self._thought.add(text, None)
        yield from ()

    def _plan(self, told: Json) -> Iterator[Payload]:
        entries = told.get("entries") or _mapping(told.get("plan")).get("entries")
        if isinstance(entries, list):
            kept = [_entry(one) for one in entries[:MOST_ENTRIES] if isinstance(one, Mapping)]
            yield PlanUpdate(entries=tuple(kept))

    def _tool(self, told: Json) -> Iterator[Payload]:
        if not isinstance(told.get("toolCallId"), str):
            self.unknown.add("tool call without id")
            return
        if told["toolCallId"] not in self.tools:
            yield from self._break()
        tool = self._know(told)
        status = told.get("status")
        if tool.ended:
            return
        if status not in (None, "pending") or _telling(tool.arguments):
            yield from self._start(tool)
        if status in ("completed", "failed", "cancelled"):
            yield from self._finish(tool, failed=status != "completed")

    # -- tools ---------------------------------------------------------------------------------------------------

    def _know(self, told: Json) -> Tool:
        """The tool call with what an update adds to it."""
        name = str(told.get("toolCallId") or f"unnamed{len(self.tools)}")
        if len(self.tools) > MOST_TOOLS and name not in self.tools:
            self.tools = {key: one for key, one in self.tools.items() if not one.ended}
        tool = self.tools.setdefault(name, Tool(name))
        if tool.ended:
            return tool
        tool.name = _tool_name(told) or tool.name
        if isinstance(title := told.get("title"), str) and title.strip():
            tool.title = title.strip()[:TITLE_SHOWN]
        if (kind := told.get("kind")) in KINDS and kind != "other":
            tool.kind = str(kind)
        elif tool.kind == "other" and tool.name:
            tool.kind = guess_kind(tool.name)
        if told.get("rawInput"):
            tool.arguments = small(told["rawInput"])
        tool.locations = paths(told.get("locations")) or tool.locations or find_paths(tool.arguments)
        said: list[str] = []
        for item in told.get("content") or () if isinstance(told.get("content"), list) else ():
            self._content(tool, _mapping(item), said)
        if told.get("status") not in (None, "pending"):  # before, it is what the agent means to do
            raw = told.get("rawOutput")
            tool.result = _cut("\n".join(said) or _output(raw, bool(tool.diffs))) or tool.result
        return tool

    def _content(self, tool: Tool, item: Json, said: list[str]) -> None:
        if item.get("type") == "diff" and isinstance(item.get("path"), str):
            old, new = item.get("oldText"), item.get("newText")
            tool.diffs[item["path"]] = patch(
                item["path"], old if isinstance(old, str) else None, new if isinstance(new, str) else ""
            )
        elif text := _text(item.get("content")):
            said.append(text)

    def _start(self, tool: Tool) -> Iterator[Payload]:
        if tool.started is None:
            tool.started = self._clock()
            yield ToolExecStart(
                tool=tool.name or tool.kind, arguments=tool.arguments, tool_call_id=tool.id, title=tool.title or None,
                tool_kind=tool.kind, locations=tool.locations,
            )  # fmt: skip

    def _finish(self, tool: Tool, *, failed: bool, said: str = "") -> Iterator[Payload]:
        tool.ended = True
        spent = self._clock() - tool.started if tool.started is not None else 0.0
        result = f"denied: {tool.denied}" if tool.denied else tool.result or said
        yield ToolExecEnd(
            tool=tool.name or tool.kind, tool_call_id=tool.id, duration=round(spent, 6), result=result or None,
            for_llm_len=len(result) or None, is_error=failed or tool.denied is not None,
            diffs=tuple(tool.diffs.values()),
        )  # fmt: skip
        tool.diffs, tool.result, tool.arguments = {}, "", None

    # -- texts ---------------------------------------------------------------------------------------------------

    def _break(self) -> Iterator[Payload]:
        """A tool begins: what was said before it is a message of its own."""
        yield from self._end_thought()
        if self._said is not None and (text := self._said.whole().strip()):
            yield from self.show()
            yield MessageUpdate(message_id=self._said.id, role="agent", message=text)
            self._last, self._said = text, None

    def _end_thought(self) -> Iterator[Payload]:
        if self._thought is not None:
            thought, self._thought = self._thought, None
            yield ThoughtUpdate(thought_id=thought.id, text=thought.whole())


def tokens(told: Json) -> dict[str, int]:
    """Counts of tokens, however they are spelt. None at all is not known rather than nothing."""
    names = {"input_tokens": ("inputTokens", "input_tokens"), "output_tokens": ("outputTokens", "output_tokens")}
    counts = {name: [told[one] for one in spelt if isinstance(told.get(one), int)] for name, spelt in names.items()}
    found = {name: listed[0] for name, listed in counts.items() if listed}
    return found if any(found.values()) else {}


def paths(locations: Any) -> tuple[str, ...]:
    """The files an update names."""
    listed = locations if isinstance(locations, list) else ()
    found = (_mapping(one).get("path") for one in listed[:MOST_ITEMS])
    return tuple(path for path in found if isinstance(path, str))


def small(value: Any, depth: int = 4) -> Any:
    """A value without its bulk."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_ARGUMENT else f"{value[:LONGEST_ARGUMENT]}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        if depth == 0:
            return "…"
        return {str(k)[:100]: small(v, depth - 1) for k, v in list(value.items())[:MOST_ITEMS]}
    if isinstance(value, list):
        return [small(one, depth - 1) for one in value[:MOST_ITEMS]] if depth else "…"
    return value


def _telling(arguments: Any) -> bool:
    """Whether the arguments say what is done; some agents first name a tool and tell these later."""
    return bool(arguments.keys() - {"cwd"}) if isinstance(arguments, Mapping) else arguments is not None


def _tool_name(told: Json) -> str | None:
    meta = _mapping(told.get("_meta"))
    places = [told.get("name"), meta.get("toolName")]
    for one in meta.values():
        places += [_mapping(one).get("toolName"), _mapping(_mapping(one).get("toolCall")).get("toolName")]
    return next((name[:100] for name in places if isinstance(name, str) and name), None)


def _entry(one: Json) -> dict[str, str]:
    return {
        "content": str(one.get("content", ""))[:LONGEST_ARGUMENT],
        "status": str(one.get("status", "pending"))[:50],
        "priority": str(one.get("priority", "medium"))[:50],
    }


def _text(block: Any) -> str:
    """The text of a content block; of others what they are."""
    told = _mapping(block)
    match told.get("type"):
        case "text":
            return told["text"] if isinstance(told.get("text"), str) else ""
        case "resource_link":
            return f"[{told.get('name') or told.get('uri')}]"
        case "resource":
            inner = _mapping(told.get("resource"))
            return inner["text"] if isinstance(inner.get("text"), str) else f"[{inner.get('uri')}]"
        case "image" | "audio" as kind:
            return f"[{kind}]"
    return ""


def _output(raw: Any, has_diffs: bool) -> str:
    """What a tool returned, of an answer whose form is the agent's own."""
    if isinstance(raw, str):
        return raw
    texts = [told for name in OUTPUTS if isinstance(told := _mapping(raw).get(name), str)]
    if texts or not raw or has_diffs:
        return next(filter(None, texts), "")
    return orjson.dumps(small(raw), default=str).decode()


def _cut(text: str) -> str:
    return (
        text if len(text) <= LONGEST_RESULT else f"{text[:LONGEST_RESULT]}\n… {len(text) - LONGEST_RESULT} characters"
    )


def _mapping(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}
