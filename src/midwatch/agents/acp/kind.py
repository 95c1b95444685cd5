"""Kind `acp`: coding agents that speak the Agent Client Protocol. Every step is seen, every question asked."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midwatch.agents.acp.conversation import AcpConversation
from midwatch.agents.acp.options import AcpOptions
from midwatch.agents.acp.profiles import NAMES, Profile
from midwatch.agents.base import BaseAgent
from midwatch.base.errors import BadConfig
from midwatch.domain.agent import AgentTerms
from midwatch.domain.session import Session
from midwatch.programs.process import Program

ANY = Profile(
    name="any",
    description="an agent that speaks the Agent Client Protocol",
    argv=(),
    install="see its documentation",
    login="sign in with its own program",
)


class AcpAgent(BaseAgent):
    """Starts an agent for a session and speaks with it."""

    kind = "acp"
    starts_programs = True
    terms = AgentTerms(timeout_seconds=8 * 3600.0, on_crash="resume", slots=4)

    def __init__(
        self, name: str, options: AcpOptions, *, terms: AgentTerms | None = None, description: str = ""
    ) -> None:
        super().__init__(name, terms=terms, description=description)
        self.options = options
        self.profile = NAMES[options.profile] if options.profile else ANY

    @classmethod
    def from_options(cls, name: str, options: Mapping[str, Any], terms: AgentTerms, description: str) -> AcpAgent:
        """From `[agents.NAME]`. Without a profile and a program, the name says which agent is meant."""
        read = AcpOptions.read(name, options)
        if read.profile is None and not read.argv:
            if name not in NAMES:
                raise BadConfig(f"agents.{name}: write profile ({', '.join(NAMES)}) or argv.")
            read = AcpOptions.read(name, {**options, "profile": name})
        return cls(name, read, terms=terms, description=description)

    @property
    def mcp_servers(self) -> list[dict[str, Any]]:
        """As the protocol has them."""
        return [server.wire() for server in self.options.mcp_servers]

    async def open(self, session: Session) -> AcpConversation:
        """Nothing is started before the first turn."""
        return AcpConversation(self, session)

    def describe(self) -> Mapping[str, Any]:
        """The command line, and why it cannot run here."""
        program = self.program(None)
        found: dict[str, Any] = {"command": shlex.join(program.argv)}
        if problem := self.problem(program):
            found["problem"] = problem
        return found

    def problem(self, program: Program) -> str | None:
        """Why it cannot be started here, or None."""
        why = program.problem()
        if why and self.options.profile and "is not installed" in why:
            return f"program {program.argv[0]!r} is not installed; {self.profile.install}"
        return why

    def program(self, workdir: str | None) -> Program:
        """What a conversation starts."""
        options, profile = self.options, self.profile
        model = (profile.model_argument, options.model) if profile.model_argument and options.model else ()
        argv = (*(options.argv or profile.argv), *(str(word) for word in model), *options.args)
        place = Path(workdir or options.workdir or os.getcwd()).expanduser().absolute()  # noqa: PTH109
        env = {**profile.environment, **options.env}
        inside = self.kept_in(argv[0], str(place), env)
        return Program(agent=self.name, argv=argv, workdir=str(place), sandbox=inside, env=env)
