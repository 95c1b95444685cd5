"""The profiles of known terminal agents. Each tested program has a file of its own."""

from __future__ import annotations

from collections.abc import Mapping

from midwatch.agents.terminal.profile import Profile
from midwatch.agents.terminal.profiles import aider, claude, codex, copilot, gemini, goose, opencode, qwen
from midwatch.agents.terminal.profiles.untested import UNTESTED

PROFILES: Mapping[str, Profile] = {
    "claude": claude.PROFILE,
    "codex": codex.PROFILE,
    "gemini": gemini.PROFILE,
    "qwen": qwen.PROFILE,
    "opencode": opencode.PROFILE,
    "aider": aider.PROFILE,
    "goose": goose.PROFILE,
    "copilot": copilot.PROFILE,
    **UNTESTED,
    "custom": Profile(quiet=2.0, settle=0.05),
}
"""The profiles by name."""
SOURCES: Mapping[str, str] = {
    "claude": claude.VERSION,
    "codex": codex.VERSION,
    "gemini": gemini.VERSION,
    "qwen": qwen.VERSION,
    "opencode": opencode.VERSION,
    "goose": goose.VERSION,
    "copilot": copilot.VERSION,
}
"""The versions of the programs from which the meanings of texts were taken."""
