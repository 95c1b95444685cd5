"""What agents are known not to do, and why. A gap that is closed fails its test: then remove its line here."""

from __future__ import annotations

CANNOT = {("expiring_question", "headless"): "this kind cannot ask"}
"""Cases that a kind cannot have, whatever the agent. They are not tried."""
WAITS = "the program waits for the end of its limit by itself and tells nobody, so the task goes on but is never parked"
SCROLLS = "the program scrolls a long reply inside its own window, so midwatch reads only the visible part"
PASTES = "the echo of a long prompt is not shown whole, so midwatch does not find where the reply begins"
FRAMES = "the program shows an error of the provider in the same frame as a reply, so midwatch cannot tell them apart"
GAPS = {
    ("usage_limit", "qwen", "terminal"): WAITS,
    ("api_error", "opencode", "terminal"): FRAMES,
    **{("long_reply", agent, "terminal"): SCROLLS for agent in ("opencode", "qwen", "copilot")},
    **{("repeated_prompts", agent, "terminal"): PASTES for agent in ("opencode", "qwen", "copilot")},
}
"""Cases, agents and kinds that are tried and expected to fail."""
