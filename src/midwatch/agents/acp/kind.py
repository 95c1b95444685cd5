"""Kind `acp`: coding agents that speak the Agent Client Protocol. They report every step and ask before they act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack

from midwatch.agents.acp.conversation import AcpConversation
from midwatch.agents.acp.options import AcpOptions
from midwatch.agents.acp.profiles import PROFILES, UNKNOWN_AGENT, Profile
from midwatch.agents.base import ProgramAgent, SharedSettings
from midwatch.agents.headless import installed_version
from midwatch.base.errors import BadConfig
from midwatch.domain.agent import AgentTerms
from midwatch.domain.session import Session
from midwatch.programs.process import Program


class AcpAgent(ProgramAgent[AcpOptions]):
    """Starts a program for each session and speaks the Agent Client Protocol with the program."""

    kind = "acp"
    options_class = AcpOptions
    limit_patience = 30.0
    """Seconds for which an agent may wait by itself for the end of a usage limit; then its task waits without it."""
    terms = AgentTerms(timeout_seconds=8 * 3600.0, on_crash="resume", slots=4)

    @property
    def profile(self) -> Profile:
        """The profile that tells how to use this agent over the protocol."""
        return PROFILES[self.options.profile] if self.options.profile else UNKNOWN_AGENT

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], **shared: Unpack[SharedSettings]) -> Self:
        """Return the agent that `[agents.NAME]` describes. Without `profile` and `argv`, NAME is the profile."""
        if options.get("profile") is None and not options.get("argv"):
            if name not in PROFILES:
                raise BadConfig(f"agents.{name}: set `profile` to one of {', '.join(PROFILES)}, or set `argv`.")
            options = {**options, "profile": name}
        return super().from_options(name, options, **shared)

    async def open(self, session: Session) -> AcpConversation:
        """Open a conversation. The program starts with the first turn."""
        return AcpConversation(self, self.profile, session, self.limit_patience)

    def command_line(self) -> tuple[str, ...]:
        """Return the program and its arguments."""
        options, argument = self.options, self.profile.model_argument
        model = (argument, options.model) if argument and options.model else ()
        return (*(options.argv or self.profile.argv), *model, *options.args)

    def describe(self) -> Mapping[str, Any]:
        """Return `command`, the command line, and `version`, or `problem` if the program cannot be started here."""
        description, versions = super().describe(), self.profile.versions
        if "problem" in description or versions is None or self.options.argv:
            return description
        version = installed_version(self.program(self.command_line(), None))
        return {**description, "version": version, "tested_versions": list(versions)} if version else description

    def environment(self) -> Mapping[str, str]:
        """Return the variables that the program needs."""
        return {**self.profile.env, **self.profile.program.environment_for_root()}

    def find_problem(self, program: Program) -> str | None:
        """Return the reason why the program cannot be started here, or None."""
        problem = program.problem()
        if problem and self.options.profile and "is not installed" in problem:
            return f"program {program.argv[0]!r} is not installed; {self.profile.install}"
        return problem
