"""Agent programs that print JSON lines: one module each, with a profile and a parser."""

from __future__ import annotations

from collections.abc import Mapping

from midwatch.agents.streams import claude, codex, copilot, gemini, goose, opencode, qwen
from midwatch.agents.streams.base import Profile

PROFILES: Mapping[str, Profile] = {
    known.PROFILE.name: known.PROFILE for known in (claude, codex, gemini, opencode, qwen, copilot, goose)
}
