"""Field types that several shapes share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from midwatch.base.durations import seconds
from midwatch.base.errors import InvalidInput


def _seconds(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no durations; write 90s, 10m, 1h30m or 2d")
    try:
        return seconds(value) if isinstance(value, str | int | float) else value
    except InvalidInput as problem:
        raise ValueError(str(problem)) from None


Seconds = Annotated[float, BeforeValidator(_seconds)]
"""A duration: a number of seconds, or text such as 90s, 10m, 1h30m, 2d."""
