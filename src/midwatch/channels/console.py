"""Kind `console`: prints notices to the server's own output."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from midwatch.base.text import CONTROLS
from midwatch.channels.base import SendOnly
from midwatch.domain.channel import Delivery
from midwatch.wire.fields import Options

# Whole escape sequences are removed, not only the escape character: CSI, the string sequences (OSC, DCS, SOS, PM, APC)
# to their end, then the sequences of two characters.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)


def printable_lines(text: str) -> list[str]:
    """Return the lines of a text without characters that move the cursor, set colours or reorder the text."""
    return [CONTROLS.sub("", line.replace("\t", " ")) for line in _SEQUENCE.sub("", text).splitlines()]


class ConsoleOptions(Options):
    """Options of kind `console`."""

    stream: Literal["stderr", "stdout"] = "stderr"


class ConsoleChannel(SendOnly):
    """Prints each notice, every line marked with the channel's name."""

    def __init__(self, name: str, options: Mapping[str, Any], stream: TextIO | None = None) -> None:
        super().__init__(name)
        self._stream_name = ConsoleOptions.read_section(f"channels.{name}", options).stream
        self._stream = stream

    async def deliver(self, delivery: Delivery) -> None:
        """Print the notice in one write, so that the lines of two notices do not mix."""
        stream = self._stream or getattr(sys, self._stream_name)  # the server may redirect it meanwhile
        text = "".join(f"[{self.name}] {line}\n" for line in printable_lines(delivery.text))
        try:
            encoding = stream.encoding or "utf-8"
            # the stream may not be able to show all characters
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except (OSError, ValueError, AttributeError) as problem:
            why = f"printing to {self._stream_name} failed ({type(problem).__name__}); check where this output goes"
            raise self._failure(why) from None
