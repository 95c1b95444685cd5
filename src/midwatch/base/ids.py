"""Ids: short, unique, and sorted by the time of their creation."""

from __future__ import annotations

import os
import random

_random = random.Random()  # noqa: S311 - ids are no secrets; a system call for each would cost more than the rest
os.register_at_fork(after_in_child=_random.seed)


_last = (0, 0)
"""The millisecond and the random part of the last id."""


def new_id(prefix: str, now: int) -> str:
    """Return a short id that sorts by the time of its creation; it is not a secret.

    The id has 11 hex digits of milliseconds and 12 random hex digits. Within one millisecond the random part grows by
    random steps, so that the ids of one process keep their order.
    """
    global _last
    at, (before, tail) = now // 1000, _last
    tail = tail + 1 + _random.getrandbits(24) if at == before else _random.getrandbits(47)
    _last = at, tail
    return f"{prefix}_{(at << 48) + tail:023x}"
