"""Doubles for tests: agents that follow a script, a turn and a channel that record calls, a clock moved by hand.

Imports `agents`, `domain` and `base`.
Not here: helpers that only midwatch's own tests need.
"""

from midwatch.testing.agent import (
    ScriptedAgent,
    Step,
    ask,
    delta,
    emit,
    load,
    own_group,
    raise_,
    receive,
    result,
    save,
    say,
    tool,
    wait_for,
)
from midwatch.testing.channel import RecordingChannel
from midwatch.testing.clock import FakeClock, FakeTimer, settle
from midwatch.testing.turn import RecordingTurn

__all__ = (
    "FakeClock", "FakeTimer", "RecordingChannel", "RecordingTurn", "ScriptedAgent", "Step", "ask", "delta", "emit",
    "load", "own_group", "raise_", "receive", "result", "save", "say", "settle", "tool", "wait_for",
)  # fmt: skip
