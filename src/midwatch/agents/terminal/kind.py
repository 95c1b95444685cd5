"""Kind `terminal`: an agent that lives in a terminal, driven there and read from there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from midwatch.agents.base import BaseAgent
from midwatch.agents.terminal.conversation import TerminalConversation
from midwatch.agents.terminal.process import SURROUNDINGS
from midwatch.agents.terminal.profiles import PROFILES, Profile
from midwatch.base.errors import BadConfig
from midwatch.domain.agent import AgentTerms
from midwatch.domain.event import AgentExited
from midwatch.domain.session import Session
from midwatch.programs.process import Program

SIGNS = frozenset({"ready", "prompt", "idle_title"})
"""Who says what tells that a program waits does not mean a short silence."""


class TerminalOptions(Profile):
    """Options of kind `terminal`: a profile, and what of it is to be different."""

    profile: str = Field("custom", description="What it is: one of the known profiles, or `custom`.")
    args: tuple[str, ...] = Field((), description="More arguments.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the environment.")
    workdir: str | None = Field(None, description="Working directory of tasks that name none.")

    def chosen(self, agent: str) -> Profile:
        """The profile with the changes, or BadConfig."""
        base = PROFILES.get(self.profile)
        if base is None:
            known = ", ".join(sorted(PROFILES))
            raise BadConfig(f"agents.{agent}.profile: there is no profile {self.profile!r}; use one of {known}.")
        changes = {name: getattr(self, name) for name in self.model_fields_set & Profile.model_fields.keys()}
        if changes.keys() & SIGNS:
            changes = {"quiet": Profile.model_fields["quiet"].default, **changes}
        if "argv" in changes:
            changes = {"resume_argv": (), "thread": "", **changes}
        made = base.model_copy(update=changes)
        if not made.argv:
            raise BadConfig(f"agents.{agent}.argv: name the program that runs in the terminal.")
        return made


class TerminalAgent(BaseAgent):
    """Runs a program in a terminal for each session."""

    kind = "terminal"
    starts_programs = True
    terms = AgentTerms(timeout_seconds=8 * 3600.0, on_crash="fail", slots=4)

    def __init__(
        self, name: str, options: TerminalOptions, *, terms: AgentTerms | None = None, description: str = ""
    ) -> None:
        super().__init__(name, terms=terms, description=description)
        self.options = options
        self.profile = options.chosen(name)
        self.exits: dict[str, AgentExited] = {}
        """Of sessions whose program has ended between turns: how."""

    @classmethod
    def terms_for(cls, options: Mapping[str, Any]) -> AgentTerms:
        """A program that can take up a conversation goes on after a crash. A coding agent has its directory for
        itself."""
        name = str(options.get("profile", "custom"))
        known = PROFILES.get(name)
        resumes = options.get("resume_argv") or (known and known.resume_argv and not options.get("argv"))
        terms = cls.terms._replace(exclusive=name != "custom")
        return terms._replace(on_crash="resume") if resumes else terms

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> TerminalAgent:
        """From `[agents.NAME]`."""
        return cls(name, TerminalOptions.read(name, options), terms=terms, description=description)

    async def open(self, session: Session) -> TerminalConversation:
        """The program is started with the first turn."""
        return TerminalConversation(self, session)

    def describe(self) -> Mapping[str, Any]:
        """The command line, and why it cannot run here."""
        found: dict[str, Any] = {"command": shlex.join(self.profile.argv)}
        if problem := self.program(self.profile.argv, None).problem():
            found["problem"] = problem
        return found

    def program(self, argv: tuple[str, ...], workdir: str | None) -> Program:
        """What a session starts."""
        place = Path(workdir or self.options.workdir or os.getcwd()).expanduser().absolute()  # noqa: PTH109
        env = {**SURROUNDINGS, **self.options.env}
        inside = self.kept_in(argv[0], str(place), env)
        return Program(agent=self.name, argv=(*argv, *self.options.args), workdir=str(place), sandbox=inside, env=env)
