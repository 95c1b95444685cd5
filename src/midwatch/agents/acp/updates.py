"""Translates the session updates of an agent into events, which the caller emits.

An agent may leave out fields or send unknown kinds of updates. It may mention a tool call for the first time when it
asks for permission, and it may never report the end of a tool call.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, get_args

import orjson

from midwatch.agents.live_text import LiveText
from midwatch.agents.patch import patch
from midwatch.agents.streams.drift import Drift, Words
from midwatch.agents.streams.reading import find_paths, get, get_count, get_dict, get_dicts, get_text
from midwatch.domain import event as events
from midwatch.domain.agent import Answer, QuestionKind
from midwatch.domain.event import Payload
from midwatch.domain.rule import MOST_PATHS
from midwatch.domain.tool_call import DEEPEST
from midwatch.domain.tool_name import guess_kind

Json = Mapping[str, Any]

LONGEST_TEXT = 1_000_000  # characters of one message or thought that are kept
LONGEST_RESULT = 20_000
LONGEST_ARGUMENT = 2_000
LONGEST_RAW, MOST_RAW = 50_000, 5000  # characters and values of arguments that are kept for rules
MOST_ITEMS = 50
MOST_ENTRIES = 200
MOST_TOOLS = 5000  # tool calls that are remembered; with more, those that have ended are forgotten
TITLE_SHOWN = 500
OUTPUTS = ("formatted_output", "aggregated_output", "output", "content", "stdout", "stderr", "message", "error")
IGNORED = (
    "user_message_chunk", "available_commands_update", "current_mode_update", "config_option_update",
    "session_info_update", "usage_update", "plan_removed",
)  # fmt: skip
WORDS = Words.of(
    fields="content text messageId entries plan planId id priority status toolCallId title name locations path line "
    "oldText newText terminalId resource uri mimeType data blob size description annotations",
    types="agent_message_chunk agent_thought_chunk plan plan_update tool_call tool_call_update text image audio "
    "resource resource_link content diff terminal",
    free="_meta rawInput rawOutput kind",
    type_fields="sessionUpdate type",
)
CHUNKS = ("agent_message_chunk", "agent_thought_chunk")
TOOL_KINDS = frozenset(get_args(QuestionKind)) - {"choice", "other"}
TOKEN_NAMES = {"input_tokens": "inputTokens", "output_tokens": "outputTokens"}


@dataclass(slots=True)
class Tool:
    """One tool call, with the fields that the agent has sent so far."""

    id: str
    name: str = ""
    title: str = ""
    kind: str = "other"
    arguments: Any = None
    raw: Any = None  # the arguments as they came, for rules
    unread: bool = False  # whether the arguments were too long or too deeply nested to keep them
    places: dict[str, None] = field(default_factory=dict)  # every path that any message about the call has named
    locations: tuple[str, ...] = ()
    diffs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    result: str = ""
    started: float | None = None
    ended: bool = False
    wish: str | None = None  # the action that the agent asked permission for
    request: dict[str, Any] | None = None  # the open permission request, with what later updates have changed in it
    denied: str | None = None

    @property
    def label(self) -> str:
        """A short description of the call."""
        return self.wish or self.title or self.name or self.kind

    def content(self) -> tuple[Any, ...]:
        """Return what the call would write, of which a question may show only a part; to compare it later."""
        return self.raw, self.arguments, dict(self.diffs)

    def note_places(self, paths: Iterable[str]) -> None:
        """Remember paths, up to one more than rules check."""
        for path in paths:
            if len(self.places) <= MOST_PATHS:
                self.places[path] = None


class Transcript:
    """The texts and tool calls of one turn."""

    def __init__(
        self,
        message_id: str,
        asides: tuple[re.Pattern[str], ...] = (),
        seen_asides: set[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.denied: list[Tool] = []
        self.tools: dict[str, Tool] = {}
        self.usage: dict[str, int] = {}
        self.model: str | None = None
        self.drift = Drift(WORDS)
        self.failed = False  # whether the agent reports that its work failed; its last text is then the error
        self._reasons: dict[tuple[str, str], bool] = {}
        """Denied actions with their reasons, and whether the agent knows each of them."""
        self._asides = asides
        self._seen_asides = set() if seen_asides is None else seen_asides
        self._clock = clock
        self._id = message_id
        self._text: LiveText | None = None
        self._part: str | None = None  # the agent's id of the message that its last piece of text belongs to
        self._last = ""
        self._thought: LiveText | None = None
        self._messages, self._thoughts = count(1), count(1)

    @property
    def text(self) -> str:
        """The answer: the text after the last tool call. Without such a text, the last text before it."""
        return (self._text.full_text() if self._text else "").strip() or self._last

    @property
    def spoke_last(self) -> bool:
        """Whether there is text after the last tool call."""
        return self._text is not None and bool(self._text.full_text().strip())

    @property
    def part(self) -> str | None:
        """The agent's own id of its last message, if it sent one."""
        return self._part if self._text else None

    @property
    def last_id(self) -> str:
        """The id of the message that is being written."""
        return self._text.id if self._text else self._id

    def update(self, update: Json, *, more: bool = False) -> list[Payload]:
        """Handle one `session/update` and return its events. With `more`, collect live text until the next update."""
        shown = [] if update.get("sessionUpdate") in CHUNKS else self.show()  # keep the order of texts and tools
        payloads = [*shown, *self._update(update)]
        return payloads if more else [*payloads, *self.show()]

    def show(self) -> list[Payload]:
        """Return the events for the collected live text."""
        deltas = (live.take_delta() for live in (self._text, self._thought) if live is not None)
        return [delta for delta in deltas if delta is not None]

    def ask_for(self, call: Json) -> tuple[Tool, list[Payload]]:
        """Handle a permission request and return its tool call and the events.

        The request may be the first message about the tool call.
        """
        payloads = [*self._break()]
        earlier_call = self.tools.get(str(call.get("toolCallId")))
        if earlier_call is not None and earlier_call.ended:
            del self.tools[earlier_call.id]  # another call with the same id: the fields of the first call do not apply
        tool = self._merge(call)
        tool.request = dict(call)
        return tool, [*payloads, *self._start(tool)]

    def refuse(self, tool: Tool, answer: Answer) -> None:
        """Note that a tool call was denied, and why. The agent may never report the end of that call."""
        tool.denied = answer.why or answer.status
        self.denied.append(tool)
        if answer.status == "denied" and answer.why:
            who = "a person denied it" if answer.by_person else "not allowed"
            self._reasons.setdefault((tool.label, f"{who}: {answer.why}"), False)

    def take_reasons(self) -> list[tuple[str, str]]:
        """Return the denied actions whose reasons the agent does not know yet. From now on it knows them."""
        reasons = [reason for reason, known in self._reasons.items() if not known]
        self._reasons = dict.fromkeys(self._reasons, True)
        return reasons

    def begin_again(self) -> list[Payload]:
        """Return the events that end the text so far as a message, before another prompt of the same turn."""
        return list(self._break())

    def end(self, *, cut_off: bool = False) -> list[Payload]:
        """Return the events that end open thoughts and tool calls when the turn ends.

        The last message gets no event here, because it becomes the result of the turn.
        """
        payloads = [*self.show(), *self._end_thought()]
        for tool in self.tools.values():
            if not tool.ended:
                payloads += self._start(tool)
                result = "the turn ended before the tool call" if cut_off else ""
                payloads += self._finish(tool, failed=cut_off, result=result)
        return payloads

    # -- kinds of updates ----------------------------------------------------------------------------------------

    def _update(self, update: Json) -> Iterator[Payload]:
        if update.get("sessionUpdate") in IGNORED:
            yield from self._note_status(update)
            return
        self.drift.count(update)
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                yield from self._add_text(update)
            case "agent_thought_chunk":
                self._add_thought(_content_text(update.get("content")))
            case "plan" | "plan_update":
                yield from self._plan(update)
            case "tool_call" | "tool_call_update":
                yield from self._tool(update)
            case None:
                self.drift.miss("sessionUpdate")

    def _note_status(self, update: Json) -> Iterator[Payload]:
        """Note whether the agent's work failed. Text after a failure begins a new message."""
        status = get_text(update, "_meta", "codex", "threadStatus", "type")
        if status:
            self.failed = status == "systemError"
        if self.failed and status:
            yield from self._break()

    def _add_text(self, update: Json) -> Iterator[Payload]:
        yield from self._add_usage(update)
        content = self.drift.need(update, "content", kind=Mapping)
        if get(content, "type") == "text":
            self.drift.need_text(content, "text")
        text = _content_text(content)
        if not text:
            return
        if any(aside.fullmatch(text.strip()) for aside in self._asides):
            if text.startswith("Info:"):
                yield events.TaskProgress(text=text.strip()[:TITLE_SHOWN])
            elif text not in self._seen_asides:  # some agents repeat the same notice in every turn
                self._seen_asides.add(text)
                yield events.AgentFault(message=text.strip()[:TITLE_SHOWN], level="warning")
            return
        yield from self._end_thought()
        if self._text is None:
            self._text, self._part = LiveText(f"{self._id}.{next(self._messages)}", LONGEST_TEXT), None
        part = get_text(update, "messageId") or None
        if part and self._part and part != self._part:
            self._text.add("\n\n")
        self._part = part or self._part
        self._text.add(text)

    def _add_usage(self, update: Json) -> Iterator[Payload]:
        """Add the token counts in an update to the usage. Some agents send them with an empty piece of text."""
        used = read_tokens(get_dict(update, "_meta", "usage"))
        if used:
            for name, count in used.items():
                self.usage[name] = self.usage.get(name, 0) + count
            yield events.LlmResponse(model=self.model, usage=used)

    def _add_thought(self, text: str) -> None:
        if text and self._thought is None:
            self._thought = LiveText(f"{self._id}.thought{next(self._thoughts)}", LONGEST_TEXT, thought=True)
        if self._thought is not None:
            self._thought.add(text)

    def _plan(self, update: Json) -> Iterator[Payload]:
        entries = update.get("entries") or get(update, "plan", "entries")
        if isinstance(entries, list):
            yield events.PlanUpdate(entries=tuple(_plan_entry(entry) for entry in get_dicts(entries[:MOST_ENTRIES])))

    def _tool(self, update: Json) -> Iterator[Payload]:
        if not isinstance(update.get("toolCallId"), str):
            self.drift.miss("toolCallId")
            return
        if update["toolCallId"] not in self.tools:
            yield from self._break()
        tool = self._merge(update)
        status = update.get("status")
        if tool.ended:
            return
        if status not in (None, "pending") or _has_arguments(tool.arguments):
            yield from self._start(tool)
        if status in ("completed", "failed", "cancelled"):
            yield from self._finish(tool, failed=status != "completed")

    # -- tools ---------------------------------------------------------------------------------------------------

    def _merge(self, update: Json) -> Tool:
        """Add the fields of an update to its tool call, and return the tool call."""
        id = str(update.get("toolCallId") or f"unnamed{len(self.tools)}")
        if len(self.tools) > MOST_TOOLS and id not in self.tools:
            self.tools = {key: tool for key, tool in self.tools.items() if not tool.ended}
        tool = self.tools.setdefault(id, Tool(id))
        if tool.ended:
            return tool
        if tool.request is not None:
            tool.request |= {name: update[name] for name in ("title", "rawInput") if update.get(name)}
        tool.name = _tool_name(update) or tool.name
        tool.title = get_text(update, "title").strip()[:TITLE_SHOWN] or tool.title
        kind = get_text(update, "kind").lower()
        if kind in TOOL_KINDS or (kind not in ("", "other") and (kind := guess_kind(kind)) != "other"):
            tool.kind = kind
        elif tool.kind == "other" and tool.name:
            tool.kind = guess_kind(tool.name)
        if update.get("rawInput"):
            tool.arguments = shorten(update["rawInput"])
            tool.unread = not is_small(update["rawInput"])
            tool.raw = None if tool.unread else update["rawInput"]
            tool.note_places(find_paths(update["rawInput"]))
        tool.note_places(read_paths(update.get("locations"), MOST_PATHS + 1))
        tool.locations = read_paths(update.get("locations")) or tool.locations or find_paths(tool.arguments)
        texts = [text for item in get_dicts(update, "content") if (text := self._read_content(tool, item))]
        if update.get("status") not in (None, "pending"):  # the content of an open call is only the planned change
            tool.result = _cut("\n".join(texts) or _raw_text(update.get("rawOutput"), bool(tool.diffs))) or tool.result
        return tool

    def _read_content(self, tool: Tool, item: Json) -> str:
        """Return the text of a content item. If the item is a diff, store it in `tool` and return an empty text."""
        path, uri = item.get("path"), get(item, "content", "uri") or get(item, "content", "resource", "uri")
        if isinstance(uri, str) and uri.lower().startswith("file:"):
            tool.note_places((uri,))
        if item.get("type") != "diff" or not isinstance(path, str):
            return _content_text(item.get("content"))
        old = item.get("oldText")
        tool.diffs[path] = patch(path, old if isinstance(old, str) else None, get_text(item, "newText"))
        return ""

    def _start(self, tool: Tool) -> Iterator[Payload]:
        if tool.started is None:
            tool.started = self._clock()
            yield events.ToolExecStart(
                tool=tool.name or tool.kind, arguments=tool.arguments, tool_call_id=tool.id, title=tool.title or None,
                tool_kind=tool.kind, locations=tool.locations,
            )  # fmt: skip

    def _finish(self, tool: Tool, *, failed: bool, result: str = "") -> Iterator[Payload]:
        tool.ended = True
        duration = self._clock() - tool.started if tool.started is not None else 0.0
        result = f"denied: {tool.denied}" if tool.denied else tool.result or result
        yield events.ToolExecEnd(
            tool=tool.name or tool.kind, tool_call_id=tool.id, duration=round(duration, 6), result=result or None,
            for_llm_len=len(result) or None, is_error=failed or tool.denied is not None,
            diffs=tuple(tool.diffs.values()),
        )  # fmt: skip
        tool.diffs, tool.result, tool.arguments, tool.raw, tool.request = {}, "", None, None, None

    # -- texts ---------------------------------------------------------------------------------------------------

    def _break(self) -> Iterator[Payload]:
        """Emit the text before a tool call as a separate message. Later text begins a new message."""
        yield from self._end_thought()
        if self._text is not None and (text := self._text.full_text().strip()):
            yield from self.show()
            yield events.MessageUpdate(message_id=self._text.id, role="agent", message=text)
            self._last, self._text = text, None

    def _end_thought(self) -> Iterator[Payload]:
        if self._thought is not None:
            thought, self._thought = self._thought, None
            yield events.ThoughtUpdate(thought_id=thought.id, text=thought.full_text())


def read_tokens(usage: Json) -> dict[str, int]:
    """Return the token counts in `usage`, whose names are in snake case or camel case; nothing if all are zero."""
    counts = {name: get_count(usage, camel if camel in usage else name) for name, camel in TOKEN_NAMES.items()}
    reported_counts = {name: count for name, count in counts.items() if count is not None}
    return reported_counts if any(reported_counts.values()) else {}


def read_paths(locations: Any, most: int = MOST_ITEMS) -> tuple[str, ...]:
    """Return the paths in the `locations` of an update, up to a number."""
    items = locations[:most] if isinstance(locations, list) else []
    paths = (get(item, "path") or get(item, "uri") or item for item in items)
    return tuple(path for path in paths if isinstance(path, str))


def shorten(value: Any, depth: int = 4) -> Any:
    """Return a value with long texts cut, long lists cut, and deeply nested values replaced by `…`."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_ARGUMENT else f"{value[:LONGEST_ARGUMENT]}… ({len(value)} characters)"
    if not isinstance(value, Mapping | list):
        return value
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {str(key)[:100]: shorten(item, depth - 1) for key, item in list(value.items())[:MOST_ITEMS]}
    return [shorten(item, depth - 1) for item in value[:MOST_ITEMS]]


def is_small(value: Any) -> bool:
    """Return whether JSON data is within the limits of its characters, of its values and of its depth."""
    level, characters, count = [value], 0, 0
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                characters += len(item)
            elif isinstance(item, Mapping | list):
                count += len(item)
                if count > MOST_RAW:
                    return False
                below += item if isinstance(item, list) else [*item, *item.values()]
        if characters > LONGEST_RAW:
            return False
        level = below
    return not level


def _has_arguments(arguments: Any) -> bool:
    """Return whether the arguments have arrived. Some agents send a tool call first and its arguments later."""
    return bool(arguments.keys() - {"cwd"}) if isinstance(arguments, Mapping) else arguments is not None


def _tool_name(update: Json) -> str | None:
    meta = get_dict(update, "_meta")
    names = [update.get("name"), meta.get("toolName")]
    for part in meta.values():
        names += [get(part, "toolName"), get(part, "toolCall", "toolName")]
    return next((name[:100] for name in names if isinstance(name, str) and name), None)


def _plan_entry(entry: Json) -> dict[str, str]:
    return {
        "content": get_text(entry, "content")[:LONGEST_ARGUMENT],
        "status": (get_text(entry, "status") or "pending")[:50],
        "priority": (get_text(entry, "priority") or "medium")[:50],
    }


def _content_text(block: Any) -> str:
    """Return the text of a content block. For content that is not text, return its name or type in brackets."""
    match get(block, "type"):
        case "text":
            return get_text(block, "text")
        case "resource_link":
            return f"[{get(block, 'name') or get(block, 'uri')}]"
        case "resource":
            text = get(block, "resource", "text")
            return text if isinstance(text, str) else f"[{get(block, 'resource', 'uri')}]"
        case "image" | "audio" as kind:
            return f"[{kind}]"
    return ""


def _raw_text(raw: Any, has_diffs: bool) -> str:
    """Return the text in a tool's output `raw`, whose form differs between agents.

    Without a text field, return the output as JSON, or an empty text if the tool call has diffs.
    """
    if isinstance(raw, str):
        return raw
    texts = [text for name in OUTPUTS if isinstance(text := get(raw, name), str)]
    if texts or not raw or has_diffs:
        return next(filter(None, texts), "")
    return orjson.dumps(shorten(raw), default=str).decode()


def _cut(text: str) -> str:
    left_out = len(text) - LONGEST_RESULT
    return text if left_out <= 0 else f"{text[:LONGEST_RESULT]}\n… {left_out} characters"
