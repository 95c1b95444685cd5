"""Trace context: which trace of other systems a piece of work belongs to, as W3C Trace Context writes it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
LONGEST_STATE = 512


class Trace(NamedTuple):
    """A place in a trace."""

    trace_id: str
    span_id: str
    flags: str = "01"
    state: str | None = None

    @property
    def parent(self) -> str:
        """As `traceparent` says it."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"

    def environment(self) -> dict[str, str]:
        """As a child process finds it."""
        found = {"TRACEPARENT": self.parent}
        return {**found, "TRACESTATE": self.state} if self.state else found


def read(kept: Mapping[str, Any] | None) -> Trace | None:
    """The place that `traceparent` and `tracestate` name, or None: what is malformed counts as not said."""
    found = PARENT.fullmatch(str(kept.get("traceparent"))) if kept else None
    if kept is None or found is None:
        return None
    return Trace(found[1], found[2], found[3], kept.get("tracestate"))


def noted(traceparent: str, tracestate: str = "") -> dict[str, str] | None:
    """What is kept with a task of the headers that came with its request."""
    if not PARENT.fullmatch(traceparent):
        return None
    state = tracestate if len(tracestate) <= LONGEST_STATE and tracestate.isascii() else ""
    return {"traceparent": traceparent, **({"tracestate": state} if state else {})}


def own_trace() -> dict[str, str]:
    """The headers of a request that is made on behalf of an agent: the trace it finds in its environment."""
    return noted(os.environ.get("TRACEPARENT", ""), os.environ.get("TRACESTATE", "")) or {}


incoming: ContextVar[dict[str, str] | None] = ContextVar("incoming", default=None)
"""What came with the request that is being answered; tasks that are made for it keep it."""
