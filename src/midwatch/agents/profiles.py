"""Agent programs we know, and the best way to drive each of them. What is installed is offered without configuration.

By `acp` a program tells every step, asks before it acts and stays open between messages; by `headless` it tells every
step and cannot ask; in a `terminal` its screen is read; as a `command` it prints its answer and that is all.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from midwatch.agents.acp.profiles import NAMES as SPEAK_ACP
from midwatch.agents.base import BaseAgent
from midwatch.agents.command import CommandAgent, CommandOptions
from midwatch.agents.registry import build
from midwatch.agents.streams import PROFILES as STREAMS
from midwatch.agents.terminal.profiles import PROFILES as TERMINALS
from midwatch.base.errors import BadConfig
from midwatch.domain.agent import Agent, AgentTerms

Way = Literal["acp", "headless", "terminal", "command"]

TERMS = AgentTerms(timeout_seconds=8 * 3600.0, on_crash="fail", slots=4, exclusive=True)
"""Of a program that is driven as a command: what was cut off is not repeated, since its thread id is not known."""

WHY: dict[Way, str] = {
    "acp": "speaks ACP: asks in the inbox, stays open",
    "headless": "tells its steps as JSON; cannot ask",
    "terminal": "its screen is read",
    "command": "prints its answer and that is all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One known program."""

    name: str
    description: str
    install: str
    argv: tuple[str, ...]
    """As a command."""

    @property
    def binary(self) -> str:
        """The program to look for."""
        return self.argv[0]

    def ways(self, path: str | None = None) -> tuple[Way, ...]:
        """How it can be driven with what is installed, the best first."""
        can: dict[Way, bool] = {
            "acp": self._missing_for_acp(path) is None,
            "headless": self.name in STREAMS,
            "terminal": self.name in TERMINALS and find_spec("pyghostty") is not None,
            "command": True,
        }
        return tuple(way for way, possible in can.items() if possible)

    def why(self, way: Way, path: str | None = None) -> str:
        """Why this way, and what a better one needs."""
        missing = self._missing_for_acp(path)
        if way == "acp" or not missing:
            return WHY[way]
        return f"{WHY[way]}; to have it speak ACP: `{missing}`"

    def section(self, way: Way) -> dict[str, Any]:
        """What `[agents.NAME]` says to drive it that way."""
        if way == "command":
            return {"kind": way, "argv": list(self.argv), "timeout": TERMS.timeout_seconds, "on_crash": TERMS.on_crash}
        return {"kind": way, "profile": self.name}

    def _missing_for_acp(self, path: str | None) -> str | None:
        """What is to be installed before it speaks ACP: None when nothing is, "" when nothing helps."""
        speaks = SPEAK_ACP.get(self.name)
        if speaks is None:
            return ""
        return None if shutil.which(speaks.argv[0], path=path) else speaks.install


def _npm(package: str) -> str:
    return f"npm install -g {package}"


PROFILES: tuple[Profile, ...] = (
    Profile(
        name="claude", description="Claude Code", install=_npm("@anthropic-ai/claude-code"),
        argv=("claude", "-p", "{prompt}"),
    ),
    Profile(
        name="codex", description="Codex CLI", install=_npm("@openai/codex"), argv=("codex", "exec", "{prompt}"),
    ),
    Profile(
        name="gemini", description="Gemini CLI", install=_npm("@google/gemini-cli"), argv=("gemini", "-p", "{prompt}"),
    ),
    Profile(
        name="opencode", description="opencode", install=_npm("opencode-ai"), argv=("opencode", "run", "{prompt}"),
    ),
    Profile(
        name="aider", description="Aider", install="pip install aider-chat",
        argv=("aider", "--yes-always", "--no-stream", "--message", "{prompt}"),
    ),
    Profile(name="goose", description="Goose", install=_npm("@aaif/goose"), argv=("goose", "run", "-t", "{prompt}")),
    Profile(
        name="qwen", description="Qwen Code", install=_npm("@qwen-code/qwen-code"), argv=("qwen", "-p", "{prompt}"),
    ),
    Profile(
        name="copilot", description="GitHub Copilot CLI", install=_npm("@github/copilot"),
        argv=("copilot", "-p", "{prompt}"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """A known program that is installed here: where, and how it is driven."""

    profile: Profile
    path: str
    ways: tuple[Way, ...]
    why: str

    @property
    def way(self) -> Way:
        """The best one."""
        return self.ways[0]

    def agent(self) -> Agent:
        """It, as an agent."""
        known, about = self.profile, f"{self.profile.description}, found at {self.path}"
        if self.way == "command":
            terms = TERMS._replace(workdir=str(Path.cwd()))
            made: Agent = CommandAgent(known.name, CommandOptions(argv=known.argv), terms=terms, description=about)
        else:
            made = build(known.name, self.way, {"profile": known.name}, description=about)
        if isinstance(made, BaseAgent):
            made.why = self.why
        return made


def detect(path: str | None = None) -> list[Found]:
    """The known programs on the search path (the environment's by default)."""
    places = ((known, shutil.which(known.binary, path=path)) for known in PROFILES)
    return [
        Found(known, place, known.ways(path), known.why(known.ways(path)[0], path)) for known, place in places if place
    ]


def profile(name: str) -> Profile:
    """The known program of that name, or BadConfig."""
    for known in PROFILES:
        if known.name == name:
            return known
    raise BadConfig(f"no agent program called {name!r} is known; known ones: {', '.join(p.name for p in PROFILES)}.")


def advice(name: str) -> str | None:
    """How to get a known program that is not installed; None for what is not known."""
    return next((f"{p.description} is not installed here: `{p.install}`." for p in PROFILES if p.name == name), None)
