"""The pace of a goal: how long it rests between two steps, and how many steps may start in a minute.

The pause grows while steps are short or alike, and shrinks with progress. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from midwatch.base.clock import SECOND
from midwatch.base.durations import duration

LONG_STEP = 60.0
"""A step that works for so many seconds is no quick step."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0
STEPS_PER_MINUTE = 6
MINUTE = 60 * SECOND
SHORT, ALIKE, EVERY = "its steps are short", "its steps are alike", "a step every"


def next_pace(pace: float, *, seconds: float, tools: int, same: bool) -> float:
    """Return for how many seconds a goal rests after a step, after it has rested for `pace` seconds before it.

    `seconds` is how long the step worked, `tools` how many tools it used, and `same` whether it ended with the same
    words as the step before it.
    """
    if seconds >= LONG_STEP and (tools or not same):
        return 0.0
    if tools and not same:
        return pace / 2 if pace > FIRST_PAUSE else 0.0
    return min(max(FIRST_PAUSE, 2 * pace), LONGEST_PAUSE)


def plan_start(
    now: int, deadline: int, *, pace: float, alike: bool, every: float, started: int | None
) -> tuple[int | None, str | None]:
    """Return when the next step starts, and why not now; (None, None) if it starts now.

    With `every`, it starts so many seconds after the last step has `started`, but never faster than the pace.
    """
    due, why = now + int(pace * SECOND), ALIKE if alike else SHORT
    if every and started is not None and started + int(every * SECOND) >= due:
        due, why = started + int(every * SECOND), f"{EVERY} {duration(every)}"
    return (min(due, deadline), why) if due > now else (None, None)


def find_free_start(starts: Sequence[int], now: int, per_minute: int) -> int | None:
    """Return when one more step may start, so that no minute has more than `per_minute`; None if it may start now."""
    recent = sorted(start for start in starts if now - MINUTE < start <= now)
    return recent[-per_minute] + MINUTE if len(recent) >= per_minute else None


def remember_start(starts: Sequence[int], now: int) -> tuple[int, ...]:
    """Return the times at which steps have started in the last minute, with `now` as the last one."""
    return (*(start for start in starts if now - MINUTE < start <= now), now)
