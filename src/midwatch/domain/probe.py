"""Probes: commands that the worker runs for a task, before the agent is opened or after its turn.

The command `when` of an automation decides whether a run begins. The command `check` of a goal decides after each step
whether the goal is reached. The task of the run or step has the command in its field `probe`, as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from midwatch.base.text import cut, cut_front, fence
from midwatch.domain.requests import is_plain

Which = Literal["when", "check"]

WHEN_SECONDS, CHECK_SECONDS = 60.0, 600.0
"""The default time limits of the two kinds of commands."""
LONGEST_SECONDS = 86400.0
LONGEST_COMMAND = 10_000
COMMAND_SHOWN = 200
ERROR_SHOWN = 2000
PROMPT_SHOWN = 8000
"""The most characters of a command's output in an event, and in a prompt. The end of the output is kept."""
EVIDENCE_SHOWN = 1000


class CommandResult(NamedTuple):
    """The result of a command.

    `status` is its exit status, or None if it has none; then `problem` is the reason. A negative status is the number
    of the signal that ended it. `stopped` is whether the task was stopped while the command ran.
    """

    status: int | None
    output: str = ""
    seconds: float = 0.0
    problem: str | None = None
    stopped: bool = False

    @property
    def passed(self) -> bool:
        """Return whether the command ended with exit status 0."""
        return self.status == 0

    def describe(self, command: str) -> str:
        """Return in one line how the command ended."""
        name = f"`{cut(' '.join(command.split()), COMMAND_SHOWN)}`"
        if self.status is None:
            return f"{name} has no exit status: {self.problem or 'it was stopped'}"
        return f"{name} ended with exit status {self.status}" if self.status >= 0 else f"{name} {self.problem}"

    def tell(self, command: str, shown: int = ERROR_SHOWN) -> str:
        """Return how the command ended, and the end of its output."""
        output = cut_front(self.output.strip(), shown)
        return f"{self.describe(command)}" + (f":\n{output}" if output else ".")


@dataclass(frozen=True, slots=True)
class Probe:
    """The command of a task.

    `output` is the output of a command `when` that let the run begin. Later attempts do not run it again: the agent may
    have begun, and the command may answer differently now.
    """

    which: Which
    command: str
    seconds: float
    output: str | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any] | None) -> Self | None:
        """Return the command in the field `probe` of a task, or None."""
        for which, default in (("when", WHEN_SECONDS), ("check", CHECK_SECONDS)):
            if data and data.get(which):
                return cls(which, data[which], data.get(f"{which}_timeout") or default, data.get("output"))  # type: ignore[arg-type]  # one of them
        return None

    def data(self) -> dict[str, Any]:
        """Return the command as JSON, as the field `probe` has it."""
        output = {} if self.output is None else {"output": self.output}
        return {self.which: self.command, f"{self.which}_timeout": self.seconds, **output}

    def write_output(self) -> str:
        """Return the output of the command `when` as a block for the prompt; an empty text if it printed nothing."""
        what = f"This run begins because a command ended with exit status 0: {cut(self.command, COMMAND_SHOWN)}"
        return fence(cut_front(self.output, PROMPT_SHOWN), f"{what}. Its output") if self.output else ""


def waits_for_command(probe: Mapping[str, Any] | None) -> bool:
    """Return whether a command decides first whether the agent of the task is called."""
    return bool(probe) and "when" in (probe or {}) and "output" not in (probe or {})


def keep_check(probe: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the field `probe` for a task that takes over the work of another one: only a `check` follows the work."""
    return probe if probe and "check" in probe else None


def list_problems(field: str, command: str | None, seconds: float) -> tuple[tuple[str, bool, str], ...]:
    """Return the possible problems of a command and its time limit, as `refuse_first` takes them."""
    text = command or "x"
    late = f"`{field}_timeout` must be above 0 seconds and at most a day."
    return (
        (field, not text.strip(), f"`{field}` is empty; write a command, or leave it out."),
        (field, len(text) > LONGEST_COMMAND, f"`{field}` must have at most {LONGEST_COMMAND} characters."),
        (field, not is_plain(text), f"`{field}` has a NUL character or invalid text; correct it."),
        (f"{field}_timeout", not 0 < seconds <= LONGEST_SECONDS or math.isnan(seconds), late),
    )


def note_check(command: str, result: CommandResult) -> dict[str, Any]:
    """Return what a goal keeps of its last check."""
    return {
        "command": command, "exit_status": result.status, "problem": result.problem,
        "output": cut_front(result.output.strip(), PROMPT_SHOWN), "seconds": round(result.seconds, 3),
    }  # fmt: skip


def write_check(note: Mapping[str, Any]) -> str:
    """Return the last check of a goal as a block for the prompt of its next step."""
    result = CommandResult(note.get("exit_status"), note.get("output") or "", problem=note.get("problem"))
    how = result.describe(str(note.get("command") or ""))
    return fence(result.output, f"The check after the last step says that the goal is not reached. {how}. Its output")
