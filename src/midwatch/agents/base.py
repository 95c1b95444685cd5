"""What the kinds of agents share: reading options, the plain parts of the port, and how a failure is told."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from midwatch.base.errors import AgentError, BadConfig, MidwatchError, TransientError
from midwatch.domain.agent import AgentCapability, AgentTerms, Turn
from midwatch.programs.sandbox import Sandbox

M = TypeVar("M", bound="KindOptions")


class KindOptions(BaseModel):
    """Base of a kind's options. A misspelt one is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls: type[M], agent: str, options: Mapping[str, Any]) -> M:
        """The checked options, or BadConfig naming the first wrong one. Values are not shown: they may be secret."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as problem:
            first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(("agents", agent, *map(str, first["loc"])))
            if first["type"] == "extra_forbidden":
                known = ", ".join(cls.model_fields) or "none"
                raise BadConfig(f"{where}: there is no such option; options of this kind: {known}.") from None
            raise BadConfig(f"{where}: {first['msg'].removeprefix('Value error, ')}.") from None


class BaseAgent:
    """Name, terms and description of an agent."""

    kind: ClassVar[str]
    starts_programs: ClassVar[bool] = False
    """Whether its work is done by programs, which are started in `sandbox`."""
    terms = AgentTerms()
    sandbox: Sandbox | None = None

    def __init__(self, name: str, *, terms: AgentTerms | None = None, description: str = "") -> None:
        self.name = name
        self.terms = terms or type(self).terms
        self.description = description
        self.capabilities: tuple[AgentCapability, ...] = ()
        self.why: str | None = None
        """Why it is driven the way it is, if midwatch chose that."""

    def kept_in(self, program: str, place: str, env: Mapping[str, str], *more: str) -> Sandbox | None:
        """The sandbox for a program that works in `place`, if the agent has one; `more` is what it reads."""
        if self.sandbox is None:
            return None
        return self.sandbox.hosting(program, {**os.environ, **env}.get("PATH", os.defpath), place, *more)

    @classmethod
    def terms_for(cls, options: Mapping[str, Any]) -> AgentTerms:
        """The terms of an agent with these options, where the configuration does not say."""
        return cls.terms


def message_id(turn: Turn) -> str:
    """Names the answer of a turn while it is being written."""
    return f"{turn.task_id}.{turn.attempt}"


GO_ON = (
    "midwatch was interrupted while you worked on the task below. Look at what you have done already and go on where "
    "you stopped. Do not repeat what is done.\n\n"
)


def prompt_of(turn: Turn, *, known: bool) -> str:
    """What to say to an agent; to one that was cut off and knows the conversation (`known`), that it should go on."""
    return (GO_ON if turn.resumed and known else "") + turn.prompt.replace("\0", "")


def failure(problem: BaseException) -> MidwatchError:
    """The error a task fails with when an agent's own code raised `problem`."""
    if isinstance(problem, MidwatchError):
        return problem
    last_line = traceback.format_exception_only(problem)[-1].strip()
    return (TransientError if isinstance(problem, ConnectionError) else AgentError)(last_line)


def last_lines(text: str, lines: int = 20, length: int = 2000) -> str:
    """The end of what a program printed, short enough for an error message."""
    kept = "\n".join(text.strip().splitlines()[-lines:])
    return kept if len(kept) <= length else "…" + kept[-length:]
