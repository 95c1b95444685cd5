"""The scenarios of all agents, a module each, and why other kinds of dialogs are not recorded."""

from __future__ import annotations

from collections.abc import Mapping

from agents.scenarios import claude, codex, copilot, gemini, goose, opencode, qwen
from agents.scenarios.scenario import Scenario

SCENARIOS: Mapping[str, tuple[Scenario, ...]] = {
    module.__name__.rpartition(".")[2]: module.SCENARIOS
    for module in (claude, codex, gemini, qwen, opencode, copilot, goose)
}
MISSING: Mapping[str, Mapping[str, str]] = {
    module.__name__.rpartition(".")[2]: module.MISSING
    for module in (claude, codex, gemini, qwen, opencode, copilot, goose)
}
