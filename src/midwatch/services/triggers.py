"""The trigger service: stores firings, once for each cause, and lists and replays them.

The records are in `midwatch.domain.trigger`. The scheduler starts the runs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from midwatch.base.clock import SECOND, Clock
from midwatch.base.errors import Conflict, LimitReached, NotFound
from midwatch.domain.changes import Changes
from midwatch.domain.identity import AnyActor
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES
from midwatch.domain.trigger import MOST_WAITING, Firing, Trigger, record_firing
from midwatch.services.authorization import authorize, own_record
from midwatch.services.records import require

MINUTE = 60.0
NOTHING = Changes()
MOST_IN_A_MINUTE = 60
"""How often a trigger fires in a minute at most, unless its option `per_minute` is lower."""


class Recorded(NamedTuple):
    """The stored firing, and whether this call stored it. Otherwise the trigger had fired before for the same key."""

    firing: Firing
    created: bool


class Triggers:
    """Service: the triggers of automations and their firings."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def fire(
        self,
        trigger: Trigger,
        *,
        key: str,
        summary: str,
        payload: str | None = None,
        delay: float = 0.0,
        chain_id: str | None = None,
        path: tuple[str, ...] = (),
        skipped: str | None = None,
        also: Changes = NOTHING,
        limited: bool = True,
    ) -> Recorded:
        """Store the firing of a trigger for the cause `key`. If it fired for this cause before, return that firing.

        `also` is written in the same transaction. Without `limited`, the number of firings in a minute has no limit.
        Raise LimitReached if the trigger fires too often. If too many firings wait, this one is stored as skipped.
        """
        for _ in range(TRIES):
            if found := await self._store.find_firing(trigger.id, key):
                return Recorded(found, False)
            now = self._clock.now()
            if limited:
                await self._check_rate(trigger, now)
            automation = require(
                await self._store.get_automation(trigger.automation_id), "automation", trigger.automation_id
            )
            if skipped is None and await self._store.count_waiting_firings(automation.id) >= MOST_WAITING:
                skipped = f"{MOST_WAITING} firings of this automation wait already"
            firing, step = record_firing(
                automation, trigger, now, key=key, summary=summary, payload=payload, delay=delay, chain_id=chain_id,
                path=path, skipped=skipped,
            )  # fmt: skip
            with suppress(Conflict):  # another process stored the same firing
                await self._store.apply(step.plus(also))
                return Recorded(firing, True)
        raise Conflict(f"trigger {trigger.id} keeps changing; try again.")

    async def _check_rate(self, trigger: Trigger, now: int) -> None:
        most = int(trigger.options.get("per_minute", MOST_IN_A_MINUTE))
        if await self._store.count_firings(trigger.id, now - int(MINUTE * SECOND)) >= most:
            raise LimitReached(f"trigger {trigger.id} fired {most} times in a minute; try again later.")

    async def firings(self, automation_id: str, limit: int = 20, *, actor: AnyActor = None) -> list[Firing]:
        """Return the firings of an automation, newest first."""
        automation = require(await self._store.get_automation(automation_id.strip()), "automation", automation_id)
        authorize(actor, "read", own_record(automation))
        return await self._store.list_firings(automation.id, min(max(1, limit), 200))

    async def get(self, firing_id: str, *, actor: AnyActor = None) -> Firing:
        """Return the firing, or raise NotFound."""
        firing = require(await self._store.get_firing(firing_id.strip()), "firing", firing_id)
        automation = await self._store.get_automation(firing.automation_id)
        if automation is not None:
            authorize(actor, "read", own_record(automation))
        return firing

    async def replay(self, firing_id: str, *, actor: AnyActor = None) -> Firing:
        """Fire again with the stored payload of a firing, and return the new firing."""
        firing = await self.get(firing_id)
        automation = require(await self._store.get_automation(firing.automation_id), "automation", firing.automation_id)
        authorize(actor, "manage", own_record(automation))
        if automation.status != "active":
            raise Conflict(f"automation {automation.id} is {automation.status}; resume it first.")
        trigger = await self._store.get_trigger(firing.trigger_id)
        if trigger is None:
            raise NotFound("trigger", firing.trigger_id)
        now = self._clock.now()
        again, step = record_firing(
            automation, trigger, now, key=f"{firing.id}@{now}", summary=firing.summary, payload=firing.payload,
            chain_id=None, replay_of=firing.id,
        )  # fmt: skip
        await self._store.apply(step)
        return again
