"""Agent programs we know: how each is run without a terminal. What is installed is offered without configuration."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from midwatch.agents.command import CommandAgent, CommandOptions
from midwatch.task import AgentTerms

TERMS = AgentTerms(timeout_seconds=8 * 3600.0, on_crash="fail", slots=4, exclusive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One known program."""

    name: str
    description: str
    argv: tuple[str, ...]
    resume_argv: tuple[str, ...] = ()

    @property
    def binary(self) -> str:
        """The program to look for."""
        return self.argv[0]


PROFILES: tuple[Profile, ...] = (
    Profile(
        name="claude",
        description="Claude Code",
        argv=("claude", "-p", "{prompt}"),
        resume_argv=("claude", "-p", "--resume", "{thread}", "{prompt}"),
    ),
    Profile(
        name="codex",
        description="Codex CLI",
        argv=("codex", "exec", "{prompt}"),
        resume_argv=("codex", "exec", "resume", "{thread}", "{prompt}"),
    ),
    Profile(name="gemini", description="Gemini CLI", argv=("gemini", "-p", "{prompt}")),
    Profile(
        name="opencode",
        description="opencode",
        argv=("opencode", "run", "{prompt}"),
        resume_argv=("opencode", "run", "--session", "{thread}", "{prompt}"),
    ),
    Profile(name="aider", description="Aider", argv=("aider", "--yes-always", "--no-stream", "--message", "{prompt}")),
    Profile(name="goose", description="Goose", argv=("goose", "run", "-t", "{prompt}")),
    Profile(name="qwen", description="Qwen Code", argv=("qwen", "-p", "{prompt}")),
    Profile(name="copilot", description="GitHub Copilot CLI", argv=("copilot", "-p", "{prompt}")),
)


@dataclass(frozen=True, slots=True)
class Found:
    """A known program that is installed here, and where."""

    profile: Profile
    path: str

    def agent(self) -> CommandAgent:
        """It, as an agent. One that was cut off is not repeated: its thread id is not known before it ends."""
        known = self.profile
        options = CommandOptions(argv=known.argv, resume_argv=known.resume_argv)
        return CommandAgent(
            known.name,
            options,
            terms=TERMS._replace(workdir=str(Path.cwd())),
            description=f"{known.description}, found at {self.path}",
        )


def detect(path: str | None = None) -> list[Found]:
    """The known programs on the search path (the environment's by default)."""
    places = ((known, shutil.which(known.binary, path=path)) for known in PROFILES)
    return [Found(known, place) for known, place in places if place]
