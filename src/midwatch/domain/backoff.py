"""Back-off: how long a task waits before it is tried again after a failure."""

from __future__ import annotations

import random

from midwatch.domain.task import AUTOMATION_PAUSES, Task


def pause_before(task: Task) -> float:
    """Return how many seconds to wait before a failed task is tried again; runs of automations wait longer."""
    if task.cause == "automation":
        return AUTOMATION_PAUSES[min(task.failures, len(AUTOMATION_PAUSES) - 1)]
    return retry_delay(task.failures + 1)


def retry_delay(failures: int, base_seconds: float = 2.0, cap_seconds: float = 300.0) -> float:
    """Return how many seconds to wait before the next retry.

    The delay doubles with each failure up to `cap_seconds`, and is then changed at random by up to half.
    """
    plain: float = min(cap_seconds, base_seconds * 2.0 ** (failures - 1))
    return plain * random.uniform(0.5, 1.5)  # noqa: S311 - spreading load, not a secret
