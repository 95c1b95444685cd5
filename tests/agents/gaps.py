"""What agents are known not to do, and why. A gap that is closed fails its test: then remove its line here."""

from __future__ import annotations

ASKS = "this kind cannot ask"
SCREEN = "only a terminal has a screen"
NEVER = {
    ("expiring_question", "headless"): ASKS,
    ("long_reply", "headless"): SCREEN,
    ("long_reply", "acp"): SCREEN,
    ("repeated_prompts", "headless"): SCREEN,
    ("repeated_prompts", "acp"): SCREEN,
    ("agentapi_client", "headless"): SCREEN,
    ("agentapi_client", "acp"): SCREEN,
}
"""Cases that make no sense for a kind. They are not tried."""
GAPS: dict[tuple[str, str, str], str] = {}
"""Cases, agents and kinds that are tried and expected to fail."""
