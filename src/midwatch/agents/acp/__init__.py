"""Kind `acp`: coding agents that speak the Agent Client Protocol. Every step is seen, every question asked."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midwatch.agents.acp.conversation import AcpConversation
from midwatch.agents.acp.profiles import NAMES, Profile
from midwatch.agents.base import BaseAgent, KindOptions, Seconds
from midwatch.agents.process import Program
from midwatch.errors import BadConfig
from midwatch.session import Session
from midwatch.task import AgentTerms

ProfileName = Literal["claude", "codex", "gemini", "opencode", "goose", "qwen", "copilot"]
ANY = Profile(
    name="any",
    description="an agent that speaks the Agent Client Protocol",
    argv=(),
    install="see its documentation",
    login="sign in with its own program",
)


class McpServer(BaseModel):
    """A server of tools the agent is to use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    type: Literal["http", "sse"] = "http"
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("write either command or url")
        return self

    def wire(self) -> dict[str, Any]:
        """As the protocol has it."""
        if self.url is not None:
            return {"type": self.type, "name": self.name, "url": self.url, "headers": _pairs(self.headers)}
        return {"name": self.name, "command": self.command, "args": list(self.args), "env": _pairs(self.env)}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


class AcpOptions(KindOptions):
    """Options of kind `acp`."""

    profile: ProfileName | None = Field(
        None, description="A known agent: claude, codex, gemini, opencode, goose, qwen or copilot."
    )
    argv: tuple[str, ...] = Field((), description="Program and arguments, instead of the profile's.")
    args: tuple[str, ...] = Field((), description="More arguments.")
    env: dict[str, str] = Field(default_factory=dict, description="Added to the environment.")
    workdir: str | None = Field(None, description="Working directory of tasks that name none.")
    mode: str | None = Field(None, description="The agent's mode; without it the one that asks before it acts.")
    model: str | None = Field(None, description="The agent's model.")
    start_timeout: Seconds = Field(120.0, gt=0, description="Time for each answer before the prompt.")
    idle_limit: Seconds = Field(1800.0, gt=0, description="Silence after which a turn is ended.")
    mcp_servers: tuple[McpServer, ...] = Field(
        (), description="Servers of tools: name, and command, args, env, or url, type, headers."
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
