"""Coding agents that midwatch knows: how to install and sign in to each, and its command line for kind `command`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProgram:
    """One coding agent. Its name in midwatch is also the name of its program; `argv` is for kind `command`."""

    name: str
    title: str
    install: str
    sign_in: str
    argv: tuple[str, ...] = ()

    def environment_for_root(self) -> Mapping[str, str]:
        """Return the variables that the program needs if midwatch runs as root."""
        return {"IS_SANDBOX": "1"} if self.name == "claude" and os.geteuid() == 0 else {}


UNKNOWN = KnownProgram(
    name="any", title="an agent", install="see its documentation", sign_in="sign in with its own program"
)
"""Stands for a configured program that midwatch does not know."""
KNOWN: Mapping[str, KnownProgram] = {
    name: KnownProgram(name=name, title=title, install=install, sign_in=sign_in, argv=(name, *arguments, "{prompt}"))
    for name, title, install, sign_in, *arguments in (
        ("claude", "Claude Code", "npm install -g @anthropic-ai/claude-code",
         "run `claude` once and sign in with /login, or set ANTHROPIC_API_KEY", "-p"),
        ("codex", "Codex CLI", "npm install -g @openai/codex",
         "run `codex login`, or set the API key that its configuration names", "exec"),
        ("gemini", "Gemini CLI", "npm install -g @google/gemini-cli",
         "run `gemini` once and sign in with /auth, or set GEMINI_API_KEY", "-p"),
        ("opencode", "opencode", "npm install -g opencode-ai", "run `opencode auth login`", "run"),
        ("aider", "Aider", "pip install aider-chat", "set the key of its provider, such as OPENAI_API_KEY",
         "--yes-always", "--no-stream", "--message"),
        ("goose", "Goose", "npm install -g @aaif/goose",
         "run `goose configure`, or set GOOSE_PROVIDER and the key of that provider", "run", "-t"),
        ("qwen", "Qwen Code", "npm install -g @qwen-code/qwen-code",
         "run `qwen` once and sign in with /auth, or set OPENAI_API_KEY and OPENAI_BASE_URL", "-p"),
        ("copilot", "GitHub Copilot CLI", "npm install -g @github/copilot",
         "run `copilot` once and sign in with /login, or set COPILOT_GITHUB_TOKEN", "-p"),
    )
}  # fmt: skip
