"""Tool calls: a tool that an agent wants to use, the decision about the call, and the result of the tool."""

from __future__ import annotations

import json
import os.path
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

from midwatch.base.text import cut

LONGEST_SHOWN = 2000
"""How many characters of the arguments a question shows."""
MOST_TEXTS = 500
MOST_CHARACTERS = 50_000
DEEPEST = 20
"""How many texts of a tool's arguments rules read: their number, their length in total, and how deep they may be."""


class ToolFacts(TypedDict, total=False):
    """What the arguments of a tool mean for rules; see `ToolCall`."""

    text: str
    command: str | None
    paths: tuple[str, ...]
    hosts: tuple[str, ...]
    root: str | None
    texts: tuple[str, ...]
    unread: bool


class ToolCall(NamedTuple):
    """A call of a tool before the tool runs, as rules and hooks see it.

    `server` is the MCP server of the tool. `command`, `paths` and `hosts` are what the call would run, use and reach,
    as far as the arguments tell. Relative paths begin at `root`, or at the working directory. If midwatch does not know
    what the arguments mean, `texts` are all texts in them, and `unread` is whether some were left out.
    """

    tool: str
    arguments: Mapping[str, Any] = {}
    id: str | None = None
    server: str | None = None
    kind: str = "other"
    command: str | None = None
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    root: str | None = None
    texts: tuple[str, ...] = ()
    unread: bool = False
    text: str = ""
    """The question that a person is asked; empty if the name and the arguments are enough."""
    asks: bool = False
    """Whether the tool itself asks for permission, unless a rule answers."""
    granted: bool = False
    """Whether a person or a rule has just allowed this call, so that nobody is asked again."""

    @property
    def name(self) -> str:
        """Return the name of the tool as rules write it: `tool`, or `server/tool`."""
        return f"{self.server}/{self.tool}" if self.server else self.tool

    def seen_from(self, root: str | None) -> ToolCall:
        """Return the same call for rules about `root`, the directory of the work. An agent may have left it."""
        start = self.root
        if root is None or start is None or os.path.normpath(start) == os.path.normpath(root):
            return self._replace(root=root or start)
        command = None if self.command is None else enter_directory(start, self.command)
        paths = tuple(os.path.join(start, path) for path in self.paths)  # noqa: PTH118 - pathlib would change it
        if self.kind == "search" and not paths:
            paths = (start,)
        texts = tuple(os.path.join(start, text) for text in self.texts)  # noqa: PTH118
        texts = tuple(dict.fromkeys((*self.texts, *texts)))
        return self._replace(root=root, command=command, paths=paths, texts=texts)

    @property
    def question(self) -> str:
        """Return the text that a person is asked: that of the tool, or its name and its arguments."""
        if self.text:
            return self.text
        shown = json.dumps(self.arguments, ensure_ascii=False, default=str)
        whose = f"{self.tool} of {self.server}" if self.server else self.tool
        return f"Use {whose} with {cut(shown, LONGEST_SHOWN)}"


class ToolResult(NamedTuple):
    """The result of a tool, as the model gets it."""

    text: str
    is_error: bool = False


class ToolDecision(NamedTuple):
    """The decision about a tool call before the tool runs.

    `go_on`: run the tool, with the arguments of `call` if it is set. `answer`: do not run the tool; the model gets
    `result`. `deny`: do not run the tool; the model gets `reason`. `stop`: end the turn. `ask`: the program
    itself must ask a person, because no task of midwatch runs.
    """

    action: Literal["go_on", "answer", "deny", "stop", "ask"] = "go_on"
    call: ToolCall | None = None
    result: ToolResult | None = None
    reason: str | None = None
    by: str | None = None
    """What decided: a rule, a hook or a person, as text for people; None with `go_on` if nobody decided."""


GO_ON = ToolDecision()

Describe = Callable[[Mapping[str, Any]], ToolCall]
"""Returns the same call of a tool with other arguments, and what these would run, use and reach."""


class ToolGate(Protocol):
    """Port: the turns of this process, which decide about the tools that their agents' programs want to use."""

    async def check_tool(self, task_id: str, call: ToolCall, wait: float) -> ToolDecision | None:
        """Return the decision about a tool call; None if there is none after `wait` seconds.

        Raise KeyError if no turn of the task runs in this process.
        """


def enter_directory(directory: str, command: str) -> str:
    """Return the command line that runs `command` in another directory."""
    return f"cd {shlex.quote(directory)} && {command}"


def collect_texts(arguments: Any) -> ToolFacts:
    """Return all texts in the arguments of a tool that midwatch does not know. Each may be a path or a command."""
    texts, left = dict[str, None](), MOST_CHARACTERS
    for text in _find_texts(arguments, DEEPEST):
        if text is None or len(texts) >= MOST_TEXTS or (left := left - len(text)) < 0:
            return {"texts": tuple(texts), "unread": True}
        texts[text] = None
    return {"texts": tuple(texts)}


def _find_texts(value: Any, depth: int) -> Iterator[str | None]:
    """Yield the texts in JSON data; None for data that is too deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        if depth == 0:
            yield None
            return
        items = [*value, *value.values()] if isinstance(value, Mapping) else list(value)
        if not isinstance(value, Mapping) and items and all(isinstance(item, str) for item in items):
            yield " ".join(items)  # it may be a program and its arguments
        for item in items:
            yield from _find_texts(item, depth - 1)
