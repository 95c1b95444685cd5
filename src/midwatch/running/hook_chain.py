"""The chain of hooks: calls all hooks of a seam in order, each with a deadline.

Each hook gets a copy of the subject. A change feeds the next hook; the first answer, denial or stop ends the chain. A
hook that raises anything, takes too long or returns an invalid decision denies: a policy must not vanish because its
hook is broken. Observing hooks are called by subscriptions, which isolate them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, Protocol, TypeVar

from midwatch.base.clock import SystemClock
from midwatch.base.errors import BadConfig, InvalidInput, MidwatchError, NotFound
from midwatch.base.foreign import ContainExit, describe_source
from midwatch.base.text import cut
from midwatch.domain.event import Event, HookDecided
from midwatch.domain.hook import (
    LONGEST_REASON,
    SEAMS,
    SECONDS,
    HookDecision,
    HookFailure,
    HookMeta,
    HookOutcome,
    HookPart,
    HookReport,
    Seam,
)
from midwatch.domain.hook_patch import apply_patch, copy_data
from midwatch.domain.hook_subject import make_example
from midwatch.domain.identity import AnyActor
from midwatch.services.authorization import authorize

T = TypeVar("T")
TEST_SECONDS = 20.0
"""How long a test waits for a hook: clients stop waiting for the server after 30 s."""
TESTED = HookMeta("test", "t_test", 1, "t_test.1", "bg:t_test")
"""The turn of a test call."""


class Watched(Protocol):
    """The subscription of an observing hook, with its counters."""

    handled: int
    failed: int
    dropped: int


class _Answer(NamedTuple):
    """The decision of one hook, with the changed subject."""

    decision: HookDecision
    subject: dict[str, Any]
    seconds: float
    failed: bool = False


class _Counters:
    def __init__(self) -> None:
        self.calls = self.failures = 0
        self.last: HookFailure | None = None
        self.watched: Watched | None = None

    def note(self, problem: str) -> str:
        """Note a failure as the last one, and return it."""
        self.last = HookFailure(cut(problem, LONGEST_REASON), SystemClock().now())
        return self.last.text


class HookChain:
    """All hooks of a process. Raise BadConfig if two hooks have the same name."""

    def __init__(self, parts: Iterable[HookPart] = ()) -> None:
        self._parts = sorted(parts, key=lambda part: (part.priority, part.name))
        self._counters = {part.name: _Counters() for part in self._parts}
        if len(self._counters) < len(self._parts):
            names = [part.name for part in self._parts]
            twice = next(name for name in names if names.count(name) > 1)
            raise BadConfig(f"hooks: two hooks are named {twice!r}; give one another name.")
        self._by_seam: Mapping[Seam, tuple[HookPart, ...]] = {
            seam: tuple(part for part in self._parts if seam in part.seams) for seam in SEAMS
        }

    def has(self, seam: Seam) -> bool:
        """Return whether any hook decides at this seam."""
        return bool(self._by_seam[seam])

    async def decide(
        self, seam: Seam, subject: dict[str, Any], meta: HookMeta, report: Callable[[HookDecided], None], **about: Any
    ) -> HookOutcome:
        """Call all hooks of the seam and return what they decide together.

        `report` gets an event for each decision other than go on. `about` are fields of this event.
        """
        changed: dict[str, Any] | None = None
        for part in self._by_seam[seam]:
            answer = await self._ask(part, seam, changed or subject, meta)
            decision, reason = answer.decision, answer.decision.reason
            if decision.action == "go_on":
                continue
            report(HookDecided(
                hook=part.name, seam=seam, decision=decision.action, reason=reason, failed=answer.failed,
                duration=round(answer.seconds, 6), **about,
            ))  # fmt: skip
            if decision.action == "change":
                changed = answer.subject
                continue
            return HookOutcome(
                decision.action, None, decision.text or "", decision.is_error, reason or "", part.name, answer.failed
            )
        return HookOutcome(subject=changed)

    async def _ask(self, part: HookPart, seam: Seam, subject: dict[str, Any], meta: HookMeta) -> _Answer:
        """Call one hook. Whatever goes wrong, return a denial."""
        counters, began = self._counters[part.name], time.monotonic()
        counters.calls += 1
        seconds = part.seconds or SECONDS[seam]
        late = f"it gave no decision within {seconds:g} s."
        if meta is TESTED and seconds > TEST_SECONDS:
            seconds, late = TEST_SECONDS, f"it gave no decision within {TEST_SECONDS:g} s, the longest wait of a test."
        try:
            decision = await _within(seconds, partial(part.decide, seam, copy_data(subject), meta), part.name)
            if decision.action == "change":
                subject = apply_patch(seam, subject, decision.patch or {})
            if decision.reason is not None and len(decision.reason) > LONGEST_REASON:
                decision = HookDecision(decision.action, reason=cut(decision.reason, LONGEST_REASON))
            return _Answer(decision, subject, time.monotonic() - began)
        except Exception as error:
            problem = _describe(error, part, late)
        counters.failures += 1
        return _Answer(HookDecision.deny(counters.note(problem)), subject, time.monotonic() - began, failed=True)

    # -- observation -----------------------------------------------------------------------------------------------

    def observers(self) -> dict[str, Callable[[Event], Coroutine[Any, Any, None]]]:
        """Return the function that gives an event to each observing hook, by the name of the hook."""
        return {part.name: _Observer(part, self._counters[part.name]) for part in self._by_seam["observe"]}

    def note_subscription(self, name: str, watched: Watched) -> None:
        """Note the subscription of an observing hook, whose counters `list` shows."""
        self._counters[name].watched = watched

    # -- for the desk and for people -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Prepare all hooks."""
        for part in self._parts:
            await part.start()

    async def close(self) -> None:
        """End all hooks and their processes."""
        await asyncio.gather(*(part.close() for part in self._parts))

    def list(self, *, actor: AnyActor = None) -> list[HookReport]:
        """Return all hooks with their state in this process, in the order in which they are called."""
        authorize(actor, "oversee")
        return [self._report(part) for part in self._parts]

    async def test(
        self, name: str, seam: Seam, *, tool: str, arguments: Mapping[str, Any], text: str, actor: AnyActor = None
    ) -> dict[str, Any]:
        """Call one hook with an example and return its decision. No event is written, and nothing else happens."""
        authorize(actor, "operate")
        part = next((part for part in self._parts if part.name == name), None)
        if part is None:
            raise NotFound("hook", name)
        if seam == "observe" or seam not in part.seams:
            seams = ", ".join(own for own in part.seams if own != "observe") or "none"
            raise InvalidInput(f"hook {name} decides nothing at {seam}; its seams are: {seams}.", field="seam")
        answer = await self._ask(part, seam, make_example(seam, tool, arguments, text), TESTED)
        return {
            "hook": name, "seam": seam, "decision": answer.decision.data(), "failed": answer.failed,
            "duration": round(answer.seconds, 6),
        }  # fmt: skip

    def _report(self, part: HookPart) -> HookReport:
        counters = self._counters[part.name]
        watched = counters.watched
        last = max(filter(None, (counters.last, part.last_end)), key=lambda failure: failure.time, default=None)
        return HookReport(
            name=part.name, kind=part.kind, seams=part.seams, priority=part.priority, state=part.state,
            calls=counters.calls, events=watched.handled + watched.failed if watched else 0,
            failures=counters.failures + (watched.failed if watched else 0), dropped=watched.dropped if watched else 0,
            restarts=part.restarts, last_error=last and last.text, last_error_at=last and last.time,
        )  # fmt: skip


class _Observer:
    """Gives events to one observing hook."""

    def __init__(self, part: HookPart, counters: _Counters) -> None:
        self._part = part
        self._counters = counters

    async def __call__(self, event: Event) -> None:
        seconds = SECONDS["observe"]
        try:
            await _within(seconds, partial(self._part.observe, event), self._part.name)
        except Exception as error:
            self._counters.note(_describe(error, self._part, f"it did not take an event within {seconds:g} s."))
            raise


def _describe(error: Exception, part: HookPart, late: str) -> str:
    """Return why a call of a hook failed. `late` says that it took too long."""
    if isinstance(error, TimeoutError):
        return part.explain() or late
    return str(error) if isinstance(error, MidwatchError) else f"it raised {describe_source(error)}."


async def _within(seconds: float, call: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """Return what a call of a hook returns. Raise TimeoutError if it takes too long, and an error for any exit of it.

    The call has its own asyncio task: a hook that ignores its cancellation is left behind and holds nothing up.
    """
    calling = asyncio.get_running_loop().create_task(_contain(call, name))
    try:
        await asyncio.wait((calling,), timeout=seconds)
    except asyncio.CancelledError:
        _abandon(calling)
        raise
    if not calling.done():
        _abandon(calling)
        raise TimeoutError
    if calling.cancelled():
        raise InvalidInput("it cancelled itself; catch CancelledError.")
    if isinstance(calling.exception(), GeneratorExit):  # it would go through every handler of the turn
        raise InvalidInput("it raised GeneratorExit; raise an ordinary error.")
    return calling.result()


async def _contain(call: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    with ContainExit(f"hook {name}"):
        return await call()


def find_hook(frame: FrameType | None) -> str | None:
    """Return the name of the hook whose code runs in this frame of a Python thread, or None."""
    while frame is not None and frame.f_code is not _contain.__code__:
        frame = frame.f_back
    return frame.f_locals["name"] if frame is not None else None


def _abandon(calling: asyncio.Task[Any]) -> None:
    """Cancel a call whose result nobody needs any more."""
    calling.cancel()
    calling.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
