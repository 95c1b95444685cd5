"""A hook that is a Python object: it decides on the event loop of midwatch, and observes on a thread of its own."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from midwatch.base.errors import BadConfig
from midwatch.domain.event import Event
from midwatch.domain.hook import (
    MOST_SECONDS,
    PRIORITY,
    SEAMS,
    HookDecision,
    HookFailure,
    HookMeta,
    Seam,
    check_decision,
    check_hook_name,
)
from midwatch.domain.hook_patch import copy_data
from midwatch.running.hook_thread import HookThread


class PythonHook:
    """Implements `midwatch.domain.hook.HookPart` for a Python object. Raise BadConfig if the object is no hook."""

    kind = "python"
    state = "ready"
    restarts = 0
    last_end: HookFailure | None = None

    def __init__(self, hook: object) -> None:
        self._hook = hook
        self.name = str(getattr(hook, "name", "") or type(hook).__name__)
        self.priority: int = getattr(hook, "priority", PRIORITY)
        self.seconds: float | None = getattr(hook, "seconds", None)
        self.seams: tuple[Seam, ...] = tuple(seam for seam in SEAMS if callable(getattr(hook, seam, None)))
        self._thread = HookThread(self.name)
        check_hook_name(self.name)
        if inspect.isclass(hook):
            raise BadConfig(f"hook {self.name} is a class; pass an object of it.")
        if not self.seams:
            raise BadConfig(f"hook {self.name} has none of the methods {', '.join(SEAMS)}; add one.")
        if plain := [seam for seam in self.seams if not inspect.iscoroutinefunction(getattr(hook, seam))]:
            raise BadConfig(f"hook {self.name}: {plain[0]} is not an async method; write `async def {plain[0]}`.")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise BadConfig(f"hook {self.name}: its priority is not a whole number; correct it.")
        if self.seconds is not None and not (
            isinstance(self.seconds, int | float) and 0 < self.seconds <= MOST_SECONDS
        ):
            raise BadConfig(
                f"hook {self.name}: its seconds are not a number above 0 and up to {MOST_SECONDS}; correct them."
            )

    def explain(self) -> str | None:
        """Return None: a Python object can always be called."""
        return None

    async def decide(self, seam: Seam, subject: dict[str, Any], meta: HookMeta) -> HookDecision:
        """Call the method of the seam, and check its decision."""
        return check_decision(seam, await getattr(self._hook, seam)(subject, meta))

    async def observe(self, event: Event) -> None:
        """Call the method `observe` on the thread, with a copy of the event: others read the event, too."""
        copy = event._replace(payload=copy_data(event.payload))
        observe = self._hook.observe  # type: ignore[attr-defined]  # only a hook with this method is subscribed
        await self._thread.run(partial(observe, copy))

    async def start(self) -> None:
        """Do nothing: the object exists already."""

    async def close(self) -> None:
        """End the thread of the hook. The object belongs to its owner."""
        await self._thread.stop()
