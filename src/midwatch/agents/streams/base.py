"""What a program with a stream of JSON is to us: how it is called, and a parser that makes steps of lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from midwatch.agents.streams.faults import Fault, judge
from midwatch.agents.streams.steps import Step
from midwatch.base.clock import SystemClock

Line = Mapping[str, Any]
Permissions = Literal["read", "edit", "all"]
"""What an agent may do unasked: look, change files of its directory, everything."""


class Parser:
    """Reads the stream of one turn. It knows nothing but the lines and the time."""

    def __init__(self) -> None:
        self.now = SystemClock().now

    def fault(self, text: str, status: int | None = None, resets_at: int | None = None) -> Fault:
        """What an error means."""
        return judge(text, now=self.now(), status=status, resets_at=resets_at)

    def read(self, line: Line) -> Iterator[Step]:
        """What a line of standard output tells."""
        raise NotImplementedError

    def aside(self, line: str) -> Iterator[Step]:
        """What a line of standard error tells."""
        yield from ()

    def end(self) -> Iterator[Step]:
        """What the end of the stream tells."""
        yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One program: how it is called, and who reads what it prints. The prompt goes to its standard input.

    In `start` and `resume` stand `{options}`, where model, permissions and the user's own arguments go, and `{thread}`.
    """

    name: str
    title: str
    binary: str
    start: tuple[str, ...]
    resume: tuple[str, ...]
    parser: Callable[[], Parser]
    sign_in: str
    """How to sign in with it."""
    known_version: str
    """The oldest version it was tried with."""
    model: tuple[str, ...] = ("--model", "{model}")
    permissions: Mapping[Permissions, tuple[str, ...]] = field(default_factory=dict)
    permission_env: Mapping[Permissions, Mapping[str, str]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    root_env: Mapping[str, str] = field(default_factory=dict)
    """Added when everything is permitted and the user is root."""
    names_thread: bool = False
    """Whether the caller chooses the id of the conversation."""
    leaves_daemon: bool = False
    """Whether something of it may go on when it has ended."""

    def arguments(
        self, thread: str | None, *, resumed: bool, model: str | None, allowed: Permissions | None, own: Sequence[str]
    ) -> tuple[str, ...]:
        """Everything after the program's name."""
        options = [part.replace("{model}", model) for part in self.model] if model else []
        options += self.permissions.get(allowed, ()) if allowed else ()
        made: list[str] = []
        for part in self.resume if resumed else self.start:
            made += [*options, *own] if part == "{options}" else [part.replace("{thread}", thread or "")]
        return tuple(made)
