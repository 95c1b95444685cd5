"""Live output: the bus, drafts, the exchange between processes, subscriptions, hooks, telemetry.

Imports `services`, `domain` and `base`, and OpenTelemetry in `telemetry`.
Not here: state that must survive the end of the process.
"""
