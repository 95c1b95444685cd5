"""The rescuer: recovers the tasks of processes that died, and expires unanswered questions.

The rescuer runs on the leader and sleeps until a question expires. While other processes run tasks, the rescuer checks
once a second whether these processes live.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from midwatch.base.clock import LONGEST_NAP, SECOND, Clock
from midwatch.base.errors import Conflict, LeaseLost, StoreError
from midwatch.domain.account import list_ids
from midwatch.domain.budget import COUNTED_KINDS, count_usage
from midwatch.domain.changes import Changes, Fence, Update
from midwatch.domain.engine import Engine
from midwatch.domain.event import Event, EventFilter, TaskRescued, TurnEnd, end_call, event
from midwatch.domain.requests import OnCrash
from midwatch.domain.store import Store
from midwatch.domain.task import MAX_RESCUES, Task, announce_status, end, guard_ownership, meta
from midwatch.domain.task_step import TaskStep
from midwatch.loops.leader_loop import LeaderLoop
from midwatch.running.outcome import RELEASED, add_usage
from midwatch.services.approvals import Approvals
from midwatch.services.task_endings import TaskEndings

log = logging.getLogger("midwatch.rescuer")

LIFE_CHECK_SECONDS = 1.0
LOOK_SECONDS = 3600.0
"""The longest time between two checks, in seconds."""
PAUSE_SECONDS = 1.0
LOST = "the process of the task ended, and half-done work is not repeated. Check the partial work, then retry the task."
CUT_OFF = "cut off when its process ended"
SAME_IN_END = (
    "agent_id", "turn_id", "session_key", "task_id", "attempt", "actor", "parent_turn_id", "trace_path", "source",
)  # fmt: skip
"""The fields of the envelope that are the same in a start event and in its end event."""


class Rescuer(LeaderLoop):
    """Loop: rescues tasks and expires questions while this process leads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        engine: Engine,
        approvals: Approvals,
        endings: TaskEndings,
        *,
        owner: str,
        reap: Callable[[Task], Awaitable[object]],
        cancel_orphans: Callable[[], Awaitable[None]] | None = None,
        nap: float = LONGEST_NAP,
    ) -> None:
        """Build the loop. `owner` is the id of this process.

        `reap` ends the programs of a task whose process died. `cancel_orphans` cancels handoffs that no task waits for.
        """
        super().__init__(clock, engine.leads, log, nap=nap)
        self._store = store
        self._engine = engine
        self._approvals = approvals
        self._owner = owner
        self._reap = reap
        self._endings = endings
        self._cancel_orphans = cancel_orphans

    async def start(self) -> None:
        """Rescue the tasks of processes that died before the start, then start the loop."""
        if self._engine.leads():
            await self.rescue()
        await super().start()

    async def look(self) -> int:
        """Rescue tasks and expire questions. Return the time of the next check."""
        now = self._clock.now()
        others_run = await self.rescue()
        expiry = await self._store.find_next_expiry()
        if expiry is not None and expiry <= now:
            await self._approvals.expire()
            expiry = await self._store.find_next_expiry()
        times = [now + int((LIFE_CHECK_SECONDS if others_run else LOOK_SECONDS) * SECOND)]
        if expiry is not None:
            times.append(expiry)
        return min(times)

    # -- rescue --------------------------------------------------------------------------------------------------

    async def rescue(self) -> bool:
        """Rescue the tasks of dead processes. Return whether other live processes run tasks."""
        foreign_tasks = [task for task in await self._store.list_running_tasks() if task.lease_owner != self._owner]
        instances = {i.id for i in await self._store.list_instances() if i.id != self._owner}
        dead = self._engine.dead({task.lease_owner or "" for task in foreign_tasks} | instances)
        for task in foreign_tasks:
            if (task.lease_owner or "") in dead:
                try:
                    await self._rescue(task)
                except StoreError:
                    raise
                except Exception:
                    log.exception("task %s could not be rescued; this will be tried again", task.id)
        if self._cancel_orphans is not None and any((task.lease_owner or "") in dead for task in foreign_tasks):
            await self._cancel_orphans()
        if dead & instances:
            await self._store.remove_instances(dead & instances)
        return any((task.lease_owner or "") not in dead for task in foreign_tasks)

    async def _rescue(self, task: Task) -> None:
        await self._reap(task)
        fence = Fence(task.id, task.attempt)
        now = self._clock.now()
        closing = _close(await self._store.list_open_events(fence), now)
        task = task._replace(usage=add_usage(task.usage, await self._count_usage(task)))
        step, action = rescue(task, now)
        why = "the process of the agent that asked has ended"
        changes = await self._endings.end_attempt(task, step, asked=fence, why=why)
        try:
            await self._store.apply(changes._replace(events=closing + changes.events))
            log.warning("task %s of a dead process was rescued: %s", task.id, action)
        except (Conflict, LeaseLost):
            log.info("task %s changed during its rescue; this will be tried again if necessary", task.id)
            self.wake()

    async def _count_usage(self, task: Task) -> dict[str, Any] | None:
        """Return the usage of the task's attempt that died, computed from the events of the attempt."""
        which, events = EventFilter(kinds=COUNTED_KINDS, task_id=task.id), list[Event]()
        after: int | None = 0
        while after is not None:
            page = await self._store.read_events(after, which)
            events += page
            after = page.next
        limited = any(account.scope != "day" for account in await self._store.read_accounts(list_ids(task)))
        return count_usage((event for event in events if event.attempt == task.attempt), limited=limited)


def rescue(task: Task, now: int) -> tuple[TaskStep, str]:
    """Return the step of a task whose process died, and what the task's `on_crash` rule made of the task."""
    action: OnCrash = task.on_crash
    if task.rescues >= MAX_RESCUES:
        action = "fail"
    became = "cancelled" if task.stop_requested == "cancel" else action
    rescued = TaskRescued(action=became, owner=task.lease_owner, rescues=task.rescues + 1)
    if became == "cancelled":
        step = TaskStep(*end(task, now, outcome="cancelled"))
    elif action == "fail":
        why = LOST
        if task.rescues >= MAX_RESCUES:
            why = f"the process of the task ended {task.rescues + 1} times; the task is not tried again."
        step = TaskStep(*end(task, now, outcome="lost", error=why))
    else:
        fields = {**RELEASED, "rescues": task.rescues + 1, "usage": task.usage}
        update = Update("task", task.id, fields, guard_ownership(task))
        changes = Changes(updates=(update,), events=announce_status(task, "idle", now))
        step = TaskStep(task._replace(**fields), changes)
    events = (event(rescued, now, **meta(task)), *step.changes.events)
    return step._replace(changes=step.changes._replace(events=events)), became


def _close(opened: list[Event], now: int) -> tuple[Event, ...]:
    """Return an end event for each start event in `opened`, first for calls and then for the turn."""
    ends = []
    for start in sorted(opened, key=lambda e: e.kind == "turn_start"):
        spent = (now - start.time) / SECOND
        over = start.kind == "turn_start"
        end_payload = TurnEnd(status="aborted", duration=spent) if over else end_call(start, CUT_OFF, spent)
        ends.append(event(end_payload, now, **{name: getattr(start, name) for name in SAME_IN_END}))
    return tuple(ends)
