"""Coding agents that midwatch knows: how to install each, how to sign in, and its command line of kind `command`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProgram:
    """One coding agent."""

    name: str
    """Its name in midwatch, which is also the name of its program."""
    title: str
    install: str
    sign_in: str
    argv: tuple[str, ...] = ()
    """Command line for kind `command`."""
    root_env: Mapping[str, str] = field(default_factory=dict)

    def environment_for_root(self) -> Mapping[str, str]:
        """Return the variables that the program needs if midwatch runs as root."""
        return self.root_env if os.geteuid() == 0 else {}


UNKNOWN = KnownProgram(
    name="any", title="an agent", install="see its documentation", sign_in="sign in with its own program"
)
"""Stands for a configured program that midwatch does not know."""
_ALL = (
    KnownProgram(
        name="claude",
        title="Claude Code",
        install="npm install -g @anthropic-ai/claude-code",
        sign_in="run `claude` once and sign in with /login, or set ANTHROPIC_API_KEY",
        argv=("claude", "-p", "{prompt}"),
        root_env={"IS_SANDBOX": "1"},
    ),
    KnownProgram(
        name="codex",
        title="Codex CLI",
        install="npm install -g @openai/codex",
        sign_in="run `codex login`, or set the API key that its configuration names",
        argv=("codex", "exec", "{prompt}"),
    ),
    KnownProgram(
        name="gemini",
        title="Gemini CLI",
        install="npm install -g @google/gemini-cli",
        sign_in="run `gemini` once and sign in with /auth, or set GEMINI_API_KEY",
        argv=("gemini", "-p", "{prompt}"),
    ),
    KnownProgram(
        name="opencode",
        title="opencode",
        install="npm install -g opencode-ai",
        sign_in="run `opencode auth login`",
        argv=("opencode", "run", "{prompt}"),
    ),
    KnownProgram(
        name="aider",
        title="Aider",
        install="pip install aider-chat",
        sign_in="set the key of its provider, such as OPENAI_API_KEY",
        argv=("aider", "--yes-always", "--no-stream", "--message", "{prompt}"),
    ),
    KnownProgram(
        name="goose",
        title="Goose",
        install="npm install -g @aaif/goose",
        sign_in="run `goose configure`, or set GOOSE_PROVIDER and the key of that provider",
        argv=("goose", "run", "-t", "{prompt}"),
    ),
    KnownProgram(
        name="qwen",
        title="Qwen Code",
        install="npm install -g @qwen-code/qwen-code",
        sign_in="run `qwen` once and sign in with /auth, or set OPENAI_API_KEY and OPENAI_BASE_URL",
        argv=("qwen", "-p", "{prompt}"),
    ),
    KnownProgram(
        name="copilot",
        title="GitHub Copilot CLI",
        install="npm install -g @github/copilot",
        sign_in="run `copilot` once and sign in with /login, or set COPILOT_GITHUB_TOKEN",
        argv=("copilot", "-p", "{prompt}"),
    ),
)
KNOWN: Mapping[str, KnownProgram] = {program.name: program for program in _ALL}
