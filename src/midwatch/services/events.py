"""The event service: reads pages of the log, and the state that a client needs before it follows events."""

from __future__ import annotations

from typing import Any

from midwatch.base.errors import NotFound, Pruned
from midwatch.domain.event import EventFilter, LogBounds, Page
from midwatch.domain.identity import AnyActor
from midwatch.domain.store import Store
from midwatch.domain.watch_state import State, TaskState
from midwatch.services.authorization import Authorization, Owner, authorize
from midwatch.services.records import require


class Events:
    """Service: the stored events."""

    def __init__(self, store: Store, authorization: Authorization) -> None:
        self._store = store
        self._authorization = authorization

    async def check_reader(self, which: EventFilter, actor: AnyActor) -> None:
        """Raise Forbidden unless the actor may read all events that match the filter, or NotFound for an unknown tree.

        An actor that may use only some work must name a task or a session of this work.
        """
        if which.task_id is not None:
            await self._authorization.check_task(actor, "read", which.task_id)
        if which.session_key is not None:
            await self._authorization.check_session(actor, "read", which.session_key)
        if which.task_id is None and which.session_key is None:
            authorize(actor, "read", Owner(None))
        if which.tree is not None:
            await self._check_tree(which.tree)

    async def _check_tree(self, tree: str) -> None:
        """Raise NotFound if there is no task or goal with this id, and none of its work or own events is left.

        All this is read by an index: a page of the events of the tree may end before its first event.
        """
        if await self._store.list_account_tasks(tree, 1) or await self._store.get_goal(tree):
            return
        if not await self._store.read_events(0, EventFilter(task_id=tree), 1):
            raise NotFound("task or goal", tree)

    async def bounds(self) -> LogBounds:
        """Return the first and the last `seq` of the log."""
        return await self._store.read_log_bounds()

    async def page(
        self, which: EventFilter, after: int, before: int | None, limit: int, *, actor: AnyActor = None
    ) -> dict[str, Any]:
        """Return at most `limit` stored events that match a filter, as JSON.

        These are the first events after the seq `after` or, if `before` is set, the last events before that seq.
        The field `more` is true if there may be further events. Then `next` is the seq up to which the log was read:
        the `after` or `before` of the next page. Raise Pruned if events after `after` were removed.
        """
        await self.check_reader(which, actor)
        bounds = await self._store.read_log_bounds()  # before the events, so that none up to last_seq is missed
        if before is None and 0 < after < bounds.oldest_seq - 1 and which.task_id is None:
            raise Pruned(after, bounds.oldest_seq)
        events = Page()
        if limit and before is not None:
            events = await self._store.read_events_back(before, which, limit)
        elif limit:
            events = await self._store.read_events(after, which, limit)
        shown = [event.snapshot() for event in events]
        return {"events": shown, **bounds._asdict(), "more": events.next is not None, "next": events.next}

    async def state(self, which: EventFilter) -> State:
        """Return the state of the task or session that a filter names. Without both, return that of the whole desk."""
        if which.task_id is not None:
            return await self.read_task_state(which.task_id)
        if which.session_key is None:
            return await self._store.read_desk_state()
        return require(await self._store.read_session_state(which.session_key), "session", which.session_key)

    async def read_task_state(self, task_id: str) -> TaskState:
        """Return the task and its last event, or raise NotFound."""
        return require(await self._store.read_task_state(task_id), "task", task_id)
