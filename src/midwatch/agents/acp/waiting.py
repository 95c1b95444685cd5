"""Notices that an agent waits by itself for a usage limit, from the log that the agent writes to standard error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from midwatch.agents.streams import steps
from midwatch.base.clock import SECOND, SystemClock
from midwatch.base.errors import UsageLimit
from midwatch.programs.process import Output

ERROR_LIMIT = 100_000
LONGEST_LINE = 10_000
LogReader = Callable[[str], Iterator[steps.Step]]


class ErrorLog(Output):
    """The standard error of an agent. `read_line` returns the steps in a line, such as a model call that failed."""

    def __init__(self, read_line: LogReader | None) -> None:
        super().__init__(ERROR_LIMIT)
        self.wait: steps.Retry | None = None  # the usage limit that the agent waits for; None if it works
        self.news = asyncio.Event()
        self._read_line = read_line
        self._begun = b""

    def data_received(self, data: bytes) -> None:
        """Keep the text, and look for a usage limit in each complete line."""
        super().data_received(data)
        if self._read_line is None:
            return
        *lines, self._begun = (self._begun + data)[-LONGEST_LINE:].split(b"\n")
        for line in lines:
            for step in self._read_line(line.decode("utf-8", "replace")):
                if isinstance(step, steps.Retry) and step.fault.kind == "limit":
                    if self.wait is None:
                        self.news.set()
                    self.wait = step

    def allowed_silence(self, idle: float, patience: float) -> float:
        """Return the seconds that the agent may be silent: `idle`, or less while it waits for a usage limit.

        If the limit is known to last longer than `patience`, the agent is not waited for.
        """
        if self.wait is None:
            return idle
        known_as_long = self.wait.seconds is not None and self.wait.seconds > patience
        return 0.0 if known_as_long else min(patience, idle)

    def limit(self, agent: str) -> UsageLimit | None:
        """Return the error for the usage limit that the agent waits for, or None if it waits for none."""
        if self.wait is None:
            return None
        seconds = self.wait.seconds
        later = None if seconds is None else SystemClock().now() + int(seconds * SECOND)
        return UsageLimit(f"{agent}: {self.wait.fault.text}", resets_at=self.wait.fault.resets_at or later)
