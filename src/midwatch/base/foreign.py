"""Calls of code that is not part of midwatch: channels, hooks, routines, and agents of other packages.

asyncio lets a SystemExit or KeyboardInterrupt of any asyncio task end the event loop, and so the whole process. So
every call of such code is wrapped in `ContainExit`.
"""

from __future__ import annotations

import asyncio
import traceback
from types import TracebackType

from midwatch.base.errors import ForeignExit


class ContainExit:
    """A block in which SystemExit, KeyboardInterrupt and similar exceptions become the ordinary error ForeignExit.

    Other errors and the cancellation of the asyncio task stay as they are. `what` names the code that the block calls.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if problem is None or isinstance(problem, (Exception, asyncio.CancelledError, GeneratorExit)):
            return
        raise ForeignExit(f"{self._what} raised {describe_source(problem)}; only this call ended.") from problem


CONTAIN_AGENT = ContainExit("the agent")


def describe_source(problem: BaseException) -> str:
    """Return the type and the source line of an error. Its text is left out, because it may contain secrets."""
    frames = traceback.extract_tb(problem.__traceback__)[-1:]
    return type(problem).__name__ + "".join(
        f" at {frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames
    )
