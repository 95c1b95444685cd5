"""Ids: short, unique, and sorted by the time they were made."""

from __future__ import annotations

import os
import random

_random = random.Random()  # noqa: S311 - ids are no secrets; a system call for each would cost more than the rest
os.register_at_fork(after_in_child=_random.seed)


_last = (0, 0)
"""The millisecond and the rest of the last id."""


def new_id(prefix: str, now: int) -> str:
    """A short id that sorts by time of creation: 11 hex digits of milliseconds, 12 random ones, which grow by random
    steps within a millisecond, so that what one process makes keeps its order. Not a secret."""
    global _last
    at, (before, rest) = now // 1000, _last
    rest = rest + 1 + _random.getrandbits(24) if at == before else _random.getrandbits(47)
    _last = at, rest
    return f"{prefix}_{at:011x}{rest:012x}"
