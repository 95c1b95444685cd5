"""The files in the user's home that known agent programs use, and what a program in a sandbox may do with them.

A program writes its sign-in and its conversations. It reads its settings, because settings name other programs, such as
hooks, plugins and MCP servers, which would run outside of the sandbox later. It finds nothing else of its state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class ProgramState(NamedTuple):
    """The state of a program: paths relative to the user's home. The path of a directory ends with a slash.

    `kept` can be written and stays. `shown` can be read: directories are read-only, and files are copies, so a program
    may change them, but the changes are lost. `private` are directories in `kept` that start empty and are lost.
    """

    kept: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    private: tuple[str, ...] = ()


NO_STATE = ProgramState()


def _below(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


STATE: Mapping[str, ProgramState] = {
    "claude": ProgramState(
        kept=_below(".claude", "projects/ tasks/ todos/ .credentials.json"),
        shown=(
            ".claude.json",
            *_below(".claude", "settings.json settings.local.json CLAUDE.md keybindings.json agents/ commands/ hooks/"),
            *_below(".claude", "output-styles/ plugins/ rules/ skills/ workflows/"),
        ),
    ),
    "codex": ProgramState(
        kept=_below(".codex", "sessions/ archived_sessions/ auth.json history.jsonl"),
        shown=(
            *_below(".codex", "config.toml managed_config.toml requirements.toml hooks.json .env .credentials.json"),
            *_below(".codex", "AGENTS.md AGENTS.override.md installation_id version.json models_cache.json"),
            *_below(".codex", "agents/ hooks/ plugins/ prompts/ rules/ skills/"),
        ),
    ),
    "copilot": ProgramState(
        kept=_below(".copilot", "session-state/"),
        shown=(
            *_below(".copilot", "config.json settings.json mcp-config.json lsp-config.json permissions-config.json"),
            *_below(".copilot", "copilot-instructions.md agents/ hooks/ installed-plugins/ instructions/ pkg/ skills/"),
        ),
    ),
    "gemini": ProgramState(
        kept=_below(".gemini", "tmp/ oauth_creds.json google_accounts.json"),
        shown=(
            *_below(".gemini", "settings.json GEMINI.md .env projects.json trustedFolders.json installation_id"),
            *_below(".gemini", "mcp-oauth-tokens.json mcp-server-enablement.json keybindings.json state.json"),
            *_below(".gemini", "agents/ commands/ extensions/ hooks/ policies/ skills/"),
        ),
        private=_below(".gemini", "tmp/bin/"),
    ),
    "goose": ProgramState(
        kept=_below(".local/share/goose", "sessions/"),
        shown=(
            *_below(".config/goose", "config.yaml secrets.yaml permission.yaml .goosehints AGENTS.md"),
            *_below(".config/goose", "agents/ custom_providers/ memory/ plugins/ prompts/ recipes/ skills/"),
        ),
    ),
    "opencode": ProgramState(
        kept=(".local/share/opencode/",),
        shown=(
            *_below(".config/opencode", "opencode.json opencode.jsonc config.json tui.json package.json bun.lock"),
            *_below(".config/opencode", "package-lock.json AGENTS.md agent/ agents/ command/ commands/ modes/"),
            *_below(".config/opencode", "node_modules/ plugin/ plugins/ skill/ skills/ themes/ tool/ tools/"),
        ),
        private=_below(".local/share/opencode", "bin/ snapshot/ worktree/"),
    ),
    "qwen": ProgramState(
        kept=_below(".qwen", "projects/ todos/ oauth_creds.json"),
        shown=(
            *_below(".qwen", "settings.json QWEN.md AGENTS.md .env output-language.md trustedFolders.json"),
            *_below(".qwen", "mcp-oauth-tokens.json installation_id agents/ commands/ extensions/ hooks/ skills/"),
        ),
    ),
}  # fmt: skip
"""The state of known agent programs, by the name of the program."""


def find_state(program: str) -> ProgramState:
    """Return the state of a program. A program such as `claude-agent-acp` has the state of `claude`."""
    name = Path(program).name
    found = (state for known, state in STATE.items() if name == known or name.startswith(f"{known}-"))
    return next(found, NO_STATE)
