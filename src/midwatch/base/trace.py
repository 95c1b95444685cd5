"""Trace context: work can belong to a trace of another system, in the format of W3C Trace Context."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
LONGEST_STATE = 512


class Trace(NamedTuple):
    """A position in a trace: the trace, and the span that new spans belong to."""

    trace_id: str
    span_id: str
    flags: str = "01"
    state: str | None = None

    @property
    def parent(self) -> str:
        """Return the value of `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that pass the trace on to a child process."""
        parent = {"TRACEPARENT": self.parent}
        return {**parent, "TRACESTATE": self.state} if self.state else parent


def parse_trace(headers: Mapping[str, Any] | None) -> Trace | None:
    """Return the position in a trace that the headers name, or None if headers are missing or malformed."""
    match = PARENT.fullmatch(str(headers.get("traceparent"))) if headers else None
    return Trace(match[1], match[2], match[3], headers.get("tracestate")) if headers and match else None


def validate_trace(traceparent: str, tracestate: str = "") -> dict[str, str] | None:
    """Return the trace headers of a request as a task stores them; None if they are malformed."""
    if not PARENT.fullmatch(traceparent):
        return None
    state = tracestate if len(tracestate) <= LONGEST_STATE and tracestate.isascii() else ""
    return {"traceparent": traceparent, **({"tracestate": state} if state else {})}


def own_trace() -> dict[str, str]:
    """Return the trace headers for a request that an agent sends, from the environment of this process."""
    return validate_trace(os.environ.get("TRACEPARENT", ""), os.environ.get("TRACESTATE", "")) or {}


incoming: ContextVar[dict[str, str] | None] = ContextVar("incoming", default=None)
"""The trace headers of the current request; tasks that the request creates store them."""
