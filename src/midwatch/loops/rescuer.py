"""The rescuer: takes over tasks whose process died, and expires questions nobody answered.

It runs on the leader. It sleeps until there is something to do: nothing is polled except, once a second, the lives of
other processes that run tasks right now.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock
from midwatch.base.errors import Conflict, LeaseLost, StoreError
from midwatch.domain.approval import resolve
from midwatch.domain.budget import COUNTED, counted
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.engine import Engine
from midwatch.domain.event import Event, EventFilter, TaskRescued, TurnEnd, ending, event
from midwatch.domain.requests import OnCrash
from midwatch.domain.store import Store
from midwatch.domain.task import MAX_RESCUES, Task, changed_status, end, meta, owned
from midwatch.loops.leader_loop import LeaderLoop
from midwatch.running.outcome import together
from midwatch.services.approvals import Approvals
from midwatch.services.task_endings import Settle, nothing, settled

log = logging.getLogger("midwatch.rescuer")

LIFE_CHECK_SECONDS = 1.0
LOOK_SECONDS = 3600.0
"""At least this often it looks, though nothing woke it."""
PAUSE_SECONDS = 1.0
LOST = "the process that ran it ended, and half-done work is not repeated unasked. Look at what it left, then retry it."
CUT_OFF = "cut off when its process ended"


class Rescuer:
    """One per process; works while its process leads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        engine: Engine,
        approvals: Approvals,
        *,
        owner: str,
        reap: Callable[[Task], Awaitable[object]],
        settle: Settle = nothing,
        rescued: Callable[[], Awaitable[None]] | None = None,
        nap: float = LONGEST_NAP,
    ) -> None:
        self._store = store
        self._clock = clock
        self._engine = engine
        self._approvals = approvals
        self._owner = owner
        self._reap = reap
        self._settle = settle
        self._rescued = rescued
        self._leader_loop = LeaderLoop(clock, engine.leads, self._look, log, nap=nap)

    async def start(self) -> None:
        """Rescue what an earlier process left behind, then keep watch."""
        if self._engine.leads():
            await self.rescue()
        self._leader_loop.start()

    async def stop(self) -> None:
        """Stop watching. Safe twice."""
        await self._leader_loop.stop()

    def wake(self) -> None:
        """Something changed that may matter here."""
        self._leader_loop.ring()

    async def _look(self) -> int:
        """Do what is due; when to look again."""
        now = self._clock.now()
        others_run = await self.rescue()
        expiry = await self._store.next_expiry()
        if expiry is not None and expiry <= now:
            await self._approvals.expire()
            expiry = await self._store.next_expiry()
        times = [now + int((LIFE_CHECK_SECONDS if others_run else LOOK_SECONDS) * SECOND)]
        if expiry is not None:
            times.append(expiry)
        return min(times)

    # -- rescue --------------------------------------------------------------------------------------------------

    async def rescue(self) -> bool:
        """Take over the tasks of dead processes. True if other live processes run tasks now."""
        others = [task for task in await self._store.running_tasks() if task.lease_owner != self._owner]
        instances = {i.id for i in await self._store.list_instances() if i.id != self._owner}
        dead = self._engine.dead({task.lease_owner or "" for task in others} | instances)
        for task in others:
            if (task.lease_owner or "") in dead:
                try:
                    await self._rescue(task)
                except StoreError:
                    raise
                except Exception:
                    log.exception("task %s could not be rescued; it is tried again", task.id)
        if self._rescued is not None and any((task.lease_owner or "") in dead for task in others):
            await self._rescued()
        if dead & instances:
            await self._store.remove_instances(dead & instances)
        return any((task.lease_owner or "") not in dead for task in others)

    async def _rescue(self, task: Task) -> None:
        await self._reap(task)
        fence = Fence(task.id, task.attempt)
        now = self._clock.now()
        closing = _closing(await self._store.open_events(fence), now)
        task = task._replace(usage=together(task.usage, await self._used(task)))
        changes, action = rescue(task, now)
        changes = await settled(self._settle, task, changes)
        asked = [
            resolve(one, "expired", now, why="the process that asked has ended")
            for one in await self._store.pending_approvals(fence)
        ]
        try:
            await self._store.apply(
                replace(
                    changes,
                    updates=changes.updates + tuple(u for c in asked for u in c.updates),
                    events=closing + tuple(e for c in asked for e in c.events) + changes.events,
                )
            )
            log.warning("task %s was left by a dead process: %s", task.id, action)
        except (Conflict, LeaseLost):
            log.info("task %s was rescued by somebody else, or something it belongs to changed", task.id)
            self.wake()

    async def _used(self, task: Task) -> dict[str, Any] | None:
        """What the dead attempt has used, as far as it was told."""
        which, found = EventFilter(kinds=COUNTED, task_id=task.id), list[Event]()
        while page := await self._store.read_events(found[-1].seq if found else 0, which):
            found += page
        return counted((one for one in found if one.attempt == task.attempt), task.budget)


def rescue(task: Task, now: int) -> tuple[Changes, str]:
    """What becomes of a task whose process died, by its `on_crash` rule, and the word for it."""
    action: OnCrash = task.on_crash
    if task.rescues >= MAX_RESCUES:
        action = "fail"
    became = "cancelled" if task.stop_requested == "cancel" else action
    told = TaskRescued(action=became, owner=task.lease_owner, rescues=task.rescues + 1)
    first = event(told, now, **meta(task))
    if became == "cancelled":
        changes = end(task, now, outcome="cancelled")[1]
        return replace(changes, events=(first, *changes.events)), became
    if action == "fail":
        why = (
            LOST
            if task.rescues < MAX_RESCUES
            else f"its process ended {task.rescues + 1} times; it is not tried again."
        )
        changes = end(task, now, outcome="lost", error=why)[1]
        return replace(changes, events=(first, *changes.events)), action
    fields = {
        "status": "pending", "wait": None, "stop_requested": None, "lease_owner": None, "pgid": None,
        "pgid_mark": None, "token_hash": None, "rescues": task.rescues + 1, "usage": task.usage,
    }  # fmt: skip
    back = Update("task", task.id, fields, owned(task))
    return Changes(updates=(back,), events=(first, *changed_status(task, "idle", now))), action


def _closing(opened: list[Event], now: int) -> tuple[Event, ...]:
    """An end for each start the dead attempt left open, calls before their turn."""
    ends = []
    for start in sorted(opened, key=lambda e: e.kind == "turn_start"):
        spent = (now - start.time) / SECOND
        over = start.kind == "turn_start"
        told = TurnEnd(status="aborted", duration=spent) if over else ending(start, CUT_OFF, spent)
        about = {n: getattr(start, n) for n in ("agent_id", "turn_id", "session_key", "task_id", "attempt", "actor")}
        ends.append(event(told, now, **about))
    return tuple(ends)
