"""Base classes of the agent kinds and of their options, and functions that several kinds use."""

from __future__ import annotations

import asyncio
import os
import shlex
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypedDict, TypeVar, Unpack

from pydantic import Field

from midwatch.base.errors import AgentError, MidwatchError, TransientError
from midwatch.domain.agent import AgentCapability, AgentTerms, Turn
from midwatch.programs.cgroup import Limits
from midwatch.programs.process import Program
from midwatch.programs.sandbox import Sandbox
from midwatch.wire.fields import Options

NO_ENV: Mapping[str, str] = {}


class KindOptions(Options):
    """Base class of a kind's options."""

    @classmethod
    def read(cls, agent: str, options: Mapping[str, Any]) -> Self:
        """Check the options of `[agents.NAME]` and return them. Raise BadConfig that names the first wrong option."""
        return cls.read_section(f"agents.{agent}", options)


class ProgramOptions(KindOptions):
    """Options of the kinds that start a configured program."""

    env: dict[str, str] = Field(default_factory=dict, description="Variables that are added to the environment.")
    workdir: str | None = Field(None, description="Working directory of tasks without their own.")


class SharedSettings(TypedDict, total=False):
    """The settings that agents of every kind have.

    `why` is the reason why midwatch chose the kind; None if the settings name the kind. Only kinds that start programs
    use `sandbox` and `limits`.
    """

    terms: AgentTerms | None
    description: str
    capabilities: tuple[AgentCapability, ...]
    sandbox: Sandbox | None
    limits: Limits | None
    why: str | None


class BaseAgent:
    """Base class of all agents: the name and the shared settings."""

    kind: ClassVar[str]
    starts_programs: ClassVar[bool] = False
    terms = AgentTerms()
    capabilities: tuple[AgentCapability, ...] = ()

    def __init__(self, name: str, **shared: Unpack[SharedSettings]) -> None:
        self.name = name
        self.terms = shared.get("terms") or type(self).terms
        self.description = shared.get("description", "")
        self.capabilities = shared.get("capabilities") or type(self).capabilities
        self.sandbox = shared.get("sandbox")
        self.limits = shared.get("limits")
        self.why = shared.get("why")

    @classmethod
    def terms_for(cls, options: Mapping[str, Any]) -> AgentTerms:
        """Return the default terms of an agent with these options."""
        return cls.terms

    def build_program(
        self,
        argv: tuple[str, ...],
        workdir: str | None,
        env: Mapping[str, str] = NO_ENV,
        *,
        readable: Sequence[str] = (),
        enter: tuple[str, ...] = (),
    ) -> Program:
        """Return the program to start. If the agent has a sandbox, the program runs inside the sandbox.

        In the sandbox, the program can also read the directories in `readable`.
        """
        directory, sandbox = absolute_path(workdir), self.sandbox
        if sandbox is not None:
            search_path = {**os.environ, **env}.get("PATH", os.defpath)
            sandbox = sandbox.admit_program(argv[0], search_path, directory, *readable)
        return Program(
            agent=self.name, argv=argv, workdir=directory, sandbox=sandbox, limits=self.limits, env=env, enter=enter
        )


OptionsT = TypeVar("OptionsT", bound=ProgramOptions)


class ProgramAgent(BaseAgent, Generic[OptionsT]):
    """Base class of the kinds that start one configured program."""

    starts_programs = True
    options_class: ClassVar[type[ProgramOptions]]

    def __init__(self, name: str, options: OptionsT, **shared: Unpack[SharedSettings]) -> None:
        super().__init__(name, **shared)
        self.options = options

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], **shared: Unpack[SharedSettings]) -> Self:
        """Return the agent that `[agents.NAME]` describes."""
        checked: Any = cls.options_class.read(name, options)
        return cls(name, checked, **shared)

    def command_line(self) -> tuple[str, ...]:
        """Return the program and its arguments for a new conversation."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that the program needs. The option `env` can replace them."""
        return NO_ENV

    def program(self, argv: tuple[str, ...], workdir: str | None) -> Program:
        """Return the program for this command line, with the agent's environment and working directory."""
        env = {**self.environment(), **self.options.env}
        return self.build_program(argv, workdir or self.options.workdir, env)

    def find_problem(self, program: Program) -> str | None:
        """Return the reason why the program cannot be started here, or None."""
        return program.problem()

    def describe(self) -> Mapping[str, Any]:
        """Return `command`, the command line, and `problem` if the program cannot be started here."""
        program = self.program(self.command_line(), None)
        description = {"command": shlex.join(program.argv)}
        if problem := self.find_problem(program):
            description["problem"] = problem
        return description


def absolute_path(path: str | None) -> str:
    """Return the absolute path of a directory. Without `path`, return the current directory."""
    return str(Path(path or os.getcwd()).expanduser().absolute())  # noqa: PTH109


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel asyncio tasks and wait until all have ended. Ignore their errors."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def message_id(turn: Turn) -> str:
    """Return the id of the message that contains the answer of a turn."""
    return f"{turn.task_id}.{turn.attempt}"


GO_ON = (
    "midwatch was interrupted while you worked on the task below. Look at what you have done already and go on where "
    "you stopped. Do not repeat what is done.\n\n"
)


def build_prompt(turn: Turn, *, known: bool) -> str:
    """Return the prompt of a turn.

    After an interruption, an instruction to continue comes before the prompt, if the agent still has the conversation
    (`known`).
    """
    return (GO_ON if turn.resumed and known else "") + turn.prompt.replace("\0", "")


def convert_error(problem: BaseException) -> MidwatchError:
    """Convert an exception that an agent's code raised to the error of the task."""
    if isinstance(problem, MidwatchError):
        return problem
    last_line = traceback.format_exception_only(problem)[-1].strip()
    return (TransientError if isinstance(problem, ConnectionError) else AgentError)(last_line)


def last_lines(text: str, lines: int = 20, length: int = 2000) -> str:
    """Return the last `lines` lines of a text, at most `length` characters, for an error message."""
    last_text = "\n".join(text.strip().splitlines()[-lines:])
    return last_text if len(last_text) <= length else "…" + last_text[-length:]
