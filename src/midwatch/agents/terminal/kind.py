"""Kind `terminal`: an agent that runs in a terminal. midwatch types into the terminal and reads its screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from pydantic import Field

from midwatch.agents.base import ProgramAgent, ProgramOptions, SharedSettings
from midwatch.agents.terminal.conversation import TerminalConversation
from midwatch.agents.terminal.process import SURROUNDINGS
from midwatch.agents.terminal.profile import Profile
from midwatch.agents.terminal.profiles import PROFILES
from midwatch.base.errors import BadConfig
from midwatch.domain.agent import AgentTerms
from midwatch.domain.event import AgentExited
from midwatch.domain.session import Session

SIGNS = frozenset({"ready", "prompt", "idle_title"})
"""Options that tell how an idle program looks. If one is set, a short silence does not mean that it is idle."""


class TerminalOptions(Profile, ProgramOptions):
    """Options of kind `terminal`: the name of a known profile, and fields that replace the fields of the profile."""

    profile: str = Field("custom", description="One of the known profiles, or `custom`.")
    args: tuple[str, ...] = Field((), description="Additional arguments.")

    def build_profile(self, agent: str) -> Profile:
        """Return the profile with the fields and arguments of these options. Raise BadConfig if they are wrong."""
        base = PROFILES.get(self.profile)
        if base is None:
            names = ", ".join(sorted(PROFILES))
            raise BadConfig(f"agents.{agent}.profile: there is no profile {self.profile!r}; use one of {names}.")
        changes = {name: getattr(self, name) for name in self.model_fields_set & Profile.model_fields.keys()}
        if changes.keys() & SIGNS:
            changes = {"quiet": Profile.model_fields["quiet"].default, **changes}
        if "argv" in changes:
            changes = {"resume_argv": (), "thread": "", **changes}
        profile = base.model_copy(update=changes)
        if not profile.argv:
            raise BadConfig(f"agents.{agent}.argv: must not be empty; set it to the program that runs in the terminal.")
        lines = {name: getattr(profile, name) for name in ("argv", "resume_argv")}
        return profile.model_copy(update={name: (*line, *self.args) for name, line in lines.items() if line})


class TerminalAgent(ProgramAgent[TerminalOptions]):
    """Runs a program in a terminal for each session."""

    kind = "terminal"
    options_class = TerminalOptions
    terms = AgentTerms(timeout_seconds=8 * 3600.0, on_crash="fail", slots=4, threads=False, reports=())

    def __init__(self, name: str, options: TerminalOptions, **shared: Unpack[SharedSettings]) -> None:
        super().__init__(name, options, **shared)
        self.profile = options.build_profile(name)
        self.exits: dict[str, AgentExited] = {}  # how programs ended between turns, by session

    @classmethod
    def terms_for(cls, options: Mapping[str, Any]) -> AgentTerms:
        """Return the default terms.

        Tasks of a program that can resume continue after a crash. Tasks of a known coding agent do not share a
        directory.
        """
        name = str(options.get("profile", "custom"))
        profile = PROFILES.get(name)
        resumes = options.get("resume_argv") or (profile and profile.resume_argv and not options.get("argv"))
        terms = cls.terms._replace(exclusive=name != "custom")
        return terms._replace(on_crash="resume", threads=True) if resumes else terms

    async def open(self, session: Session) -> TerminalConversation:
        """Open a conversation. The program starts with the first turn."""
        return TerminalConversation(self, self.profile, self.exits, session)

    def command_line(self) -> tuple[str, ...]:
        """Return the program and its arguments."""
        return self.profile.argv

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that describe the terminal to the program."""
        return SURROUNDINGS
