"""Agents that speak the protocol: how each is started, what it needs, and what it says that is no answer."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One known agent."""

    name: str
    description: str
    argv: tuple[str, ...]
    install: str
    """How to install it."""
    login: str
    """How to sign in."""
    env: Mapping[str, str] = field(default_factory=dict)
    root_env: Mapping[str, str] = field(default_factory=dict)
    """Added when we are root."""
    mode: str | None = None
    """The mode to work in unless the configuration names one: the one that asks."""
    model_argument: str | None = None
    """The argument that names the model, for those that do not take it over the protocol in time."""
    asides: tuple[re.Pattern[str], ...] = ()
    """Whole pieces of text that are no part of an answer."""
    faults: tuple[re.Pattern[str], ...] = ()
    """Whole answers that are an error told as text."""
    doubtful: tuple[re.Pattern[str], ...] = ()
    """Whole answers that are one if they speak of a limit, of signing in, or of something that passes."""
    own_files: bool = False
    """Whether it must open files itself, because it does not understand that one is not there."""
    running_total: bool = False
    """Whether the tokens it tells are those of all its turns so far."""

    @property
    def environment(self) -> dict[str, str]:
        """What it needs in its environment."""
        return {**self.env, **(self.root_env if os.geteuid() == 0 else {})}


def _patterns(*texts: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text, re.DOTALL) for text in texts)


PROFILES: tuple[Profile, ...] = (
    Profile(
        name="claude",
        description="Claude Code",
        argv=("claude-agent-acp",),
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        login="run `claude` once and sign in, or set ANTHROPIC_API_KEY",
        root_env={"IS_SANDBOX": "1"},
        mode="default",
        faults=_patterns(r"API Error: .*", r"Not logged in.*"),
    ),
    Profile(
        name="codex",
        description="Codex",
        argv=("codex-acp",),
        install="npm install -g @zed-industries/codex-acp",
        login="run `codex login`, or set OPENAI_API_KEY",
        asides=_patterns(
            r"Model metadata for `[^`]*` not found\..*",
            r"Under-development features enabled: .*",
            r"(Heads up[,:]|Warning:|⚠).*",
            r"Long threads and multiple compactions .*",
        ),
    ),
    Profile(
        name="gemini",
        description="Gemini CLI",
        argv=("gemini", "--acp"),
        install="npm install -g @google/gemini-cli",
        login="run `gemini` once and sign in, or set GEMINI_API_KEY",
        mode="default",
        model_argument="-m",
        own_files=True,
    ),
    Profile(
        name="opencode",
        description="opencode",
        argv=("opencode", "acp"),
        install="npm install -g opencode-ai",
        login="run `opencode auth login`",
    ),
    Profile(
        name="goose",
        description="Goose",
        argv=("goose", "acp"),
        install="see block.github.io/goose",
        login="run `goose configure`",
        mode="approve",
        faults=_patterns(r"(.*\n)?Ran into this error: .*"),
    ),
    Profile(
        name="qwen",
        description="Qwen Code",
        argv=("qwen", "--acp"),
        install="npm install -g @qwen-code/qwen-code",
        login="run `qwen` once and sign in, or set OPENAI_API_KEY",
        mode="default",
    ),
    Profile(
        name="copilot",
        description="GitHub Copilot CLI",
        argv=("copilot", "--acp"),
        install="npm install -g @github/copilot",
        login="run `copilot login`",
        asides=_patterns(r"Info: .*"),
        faults=_patterns(r".*\bError: Failed to get response from the AI model.*"),
        doubtful=_patterns(r"Error: .*"),
        running_total=True,
    ),
)
NAMES = {known.name: known for known in PROFILES}
