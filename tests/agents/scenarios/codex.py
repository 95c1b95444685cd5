"""The dialogs of codex, and how they are provoked."""

from __future__ import annotations

from agents.scenarios.scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = ()
MISSING: dict[str, str] = {}
