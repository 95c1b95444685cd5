"""The profile of a program that prints JSON lines, and the base class of the parsers that turn lines into steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from midwatch.agents.known import KNOWN, KnownProgram
from midwatch.agents.streams import steps
from midwatch.agents.streams.drift import Drift, Versions, Words
from midwatch.agents.streams.faults import Fault, judge
from midwatch.agents.streams.reading import get_text, read_change, read_plan
from midwatch.base.clock import SystemClock

Line = Mapping[str, Any]
Permissions = Literal["read", "edit", "all"]
"""What an agent may do without asking: only read, also change files in its directory, or do everything."""


def map_modes(option: str, *, read: str, edit: str, all: str) -> Mapping[Permissions, tuple[str, ...]]:
    """Return the command-line arguments for each permission, for a program that sets permissions with one option."""
    return {"read": (option, read), "edit": (option, edit), "all": (option, all)}


class Parser:
    """Base class of the parsers. Each turn has its own parser object, which turns output lines into steps.

    `words` is what the parser knows of the stream. A parser reads a field on which the answer, a failure or a denial
    depends with `self.drift.need`, so that a turn fails if a new version of the program has renamed the field.
    """

    words: ClassVar[Words]
    version_field: ClassVar[str] = ""

    def __init__(self) -> None:
        self.drift = Drift(self.words)
        self.now = SystemClock().now
        self._tools: dict[str, tuple[str, Any]] = {}

    def read(self, line: Line) -> Iterator[steps.Step]:
        """Yield the steps in a line of standard output."""
        raise NotImplementedError

    def read_error(self, line: str) -> Iterator[steps.Step]:
        """Yield the steps in a line of standard error."""
        yield from ()

    def read_version(self, line: Line) -> str | None:
        """Return the version of the program, if the line contains it."""
        return get_text(line, self.version_field) or None if self.version_field else None

    def end(self) -> Iterator[steps.Step]:
        """Yield the steps that are known only when the output has ended."""
        yield from ()

    def fault(self, text: str, status: int | None = None, resets_at: int | None = None) -> Fault:
        """Classify an error by its text and its HTTP status, and return the fault."""
        return judge(text, now=self.now(), status=status, resets_at=resets_at)

    def fail(self, text: str, status: int | None = None, resets_at: int | None = None) -> steps.Failed:
        """Return the step for a turn that has failed with this error."""
        return steps.Failed(self.fault(text or "its turn failed", status, resets_at))

    def plan(self, todos: Any) -> steps.Plan:
        """Return the step for a to-do list."""
        return steps.Plan(read_plan(todos))

    def start_tool(self, id: str, name: str, arguments: Any, title: str | None = None) -> steps.ToolStart:
        """Return the step for a tool call that begins, and remember the call for `end_tool`."""
        name = name or "a tool"
        self._tools[id] = (name, arguments)
        return steps.ToolStart(id=id, name=name, arguments=arguments, title=title)

    def find_tool(self, id: str) -> tuple[str, Any]:
        """Return the name and the arguments of the open tool call with this id."""
        return self._tools.get(id, ("a tool", None))

    def end_tool(
        self,
        id: str,
        result: str,
        *,
        failed: bool,
        diffs: tuple[Mapping[str, Any], ...] = (),
        denied: bool = False,
        seconds: float | None = None,
    ) -> Iterator[steps.Step]:
        """Yield the steps for a tool call that has ended. Without `diffs`, the changes are read from its arguments."""
        name, arguments = self.find_tool(id)
        self._tools.pop(id, None)
        changes = () if failed else diffs or read_change(arguments)
        yield steps.ToolEnd(id=id, result=result, is_error=failed, diffs=changes, seconds=seconds)
        if denied:
            yield steps.Denied(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How to call one program, and the parser of its output. The program gets the prompt on standard input.

    In `start` and `resume`, `{options}` stands for the model, the permissions and the user's arguments.
    """

    name: str
    start: tuple[str, ...]
    resume: tuple[str, ...]
    parser: Callable[[], Parser]
    versions: Versions  # with which it was tested
    model: tuple[str, ...] = ("--model", "{model}")
    permissions: Mapping[Permissions, tuple[str, ...]] = field(default_factory=dict)
    permission_env: Mapping[Permissions, Mapping[str, str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    names_thread: bool = False  # whether the caller chooses the id of the conversation
    leaves_daemon: bool = False  # whether its child processes may continue after its exit

    @property
    def program(self) -> KnownProgram:
        """The program, with the instructions how to install it and how to sign in."""
        return KNOWN[self.name]

    def arguments(
        self, thread: str | None, *, resumed: bool, model: str | None, allowed: Permissions | None, own: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the command-line arguments that follow the program's name."""
        options = [part.replace("{model}", model) for part in self.model] if model else []
        options += self.permissions.get(allowed, ()) if allowed else ()
        arguments: list[str] = []
        for part in self.resume if resumed else self.start:
            arguments += [*options, *own] if part == "{options}" else [part.replace("{thread}", thread or "")]
        return tuple(arguments)
