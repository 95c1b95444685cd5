"""For those who watch: the bus, drafts, the exchange between processes, subscriptions, hooks, telemetry.

Imports `services`, `domain` and `base`, and OpenTelemetry in `telemetry`.
Not here: state that has to survive the process.
"""
