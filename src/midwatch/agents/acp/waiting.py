"""Notices that an agent waits by itself for its provider, from the log that the agent writes to standard error."""

from __future__ import annotations

import asyncio
import re

from midwatch.agents.streams.faults import judge
from midwatch.base.clock import SystemClock
from midwatch.programs.process import Output

ERROR_LIMIT = 100_000
LONGEST_LINE = 10_000


class ErrorLog(Output):
    """The standard error of an agent. `waits` matches a line about a failed model call that the agent tries again.

    The group `why` of the pattern is the provider's error.
    """

    def __init__(self, waits: re.Pattern[str] | None) -> None:
        super().__init__(ERROR_LIMIT)
        self.limit: str | None = None  # the usage limit that the agent waits for; None if it goes on
        self.news = asyncio.Event()
        self._waits = waits
        self._begun = b""

    def data_received(self, data: bytes) -> None:
        """Keep the text, and look for a usage limit in each complete line."""
        super().data_received(data)
        if self._waits is None:
            return
        *lines, self._begun = (self._begun + data)[-LONGEST_LINE:].split(b"\n")
        for line in lines:
            match = self._waits.match(line.decode("utf-8", "replace"))
            if match and judge(match["why"], now=SystemClock().now()).kind == "limit":
                if self.limit is None:
                    self.news.set()
                self.limit = match["why"]
