"""Durations: read text such as 1h30m, and write durations for people."""

from __future__ import annotations

import math
import re

from midwatch.base.errors import InvalidInput

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONGEST = 100
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")


def seconds(text: str | float) -> float:
    """Read a duration: a number of seconds, or text such as 90s, 10m, 1h30m, 2d."""
    if isinstance(text, str) and len(text) > _LONGEST:
        raise InvalidInput(f"a duration has at most {_LONGEST} characters; write 90s, 10m, 1h30m or 2d.")
    compact = text.strip().lower().replace(" ", "") if isinstance(text, str) else text
    parts = _PART.findall(str(compact))
    try:
        if parts and "".join(number + unit for number, unit in parts) == compact:
            length = float(sum(float(number) * _UNITS[unit] for number, unit in parts))
        else:
            length = float(compact)
    except (ValueError, OverflowError):
        length = math.nan
    if not math.isfinite(length):
        raise InvalidInput(f"{text!r} is not a duration; write 90s, 10m, 1h30m or 2d.")
    return length


def duration(length: float) -> str:
    """Return a duration as text for people: 45s, 12m, 2h05m, 3d4h."""
    whole = max(0, round(length))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m" + (f"{whole % 60:02}s" if whole % 60 else "")
    if whole < 86400:
        return f"{whole // 3600}h" + (f"{whole % 3600 // 60:02}m" if whole % 3600 >= 60 else "")
    return f"{whole // 86400}d" + (f"{whole % 86400 // 3600}h" if whole % 86400 >= 3600 else "")
