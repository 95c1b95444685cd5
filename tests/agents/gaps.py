"""What agents are known not to do, and why. A gap that is closed fails its test: then remove its line here."""

from __future__ import annotations

CANNOT = {("expiring_question", "headless"): "this kind cannot ask"}
"""Cases that a kind cannot have, whatever the agent. They are not tried."""
WAITS = "the program waits for the end of its limit by itself and tells nobody, so the task goes on but is never parked"
GAPS = {("usage_limit", "qwen", "terminal"): WAITS}
"""Cases, agents and kinds that are tried and expected to fail."""
