"""The trigger service: stores firings, once for each cause, and lists and replays them.

The records are in `midwatch.domain.trigger`. The scheduler starts the runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.errors import Conflict, Forbidden, InvalidInput, LimitReached, NotFound, Unauthorized
from midwatch.base.ids import new_id
from midwatch.domain.automation import Automation
from midwatch.domain.chain import list_upstream
from midwatch.domain.changes import Changes, Update
from midwatch.domain.identity import AnyActor
from midwatch.domain.payload_filter import find_unmet
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES
from midwatch.domain.trigger import MOST_WAITING, PAYLOAD_SHOWN, Firing, Trigger, record_firing
from midwatch.domain.watch_options import describe_trigger
from midwatch.domain.webhook import Headers, find_delivery_id, is_signed, make_secret
from midwatch.domain.webhook_summary import summarise
from midwatch.services.authorization import authorize, own_record
from midwatch.services.automations import find_automation
from midwatch.services.records import require

MINUTE, DAY = 60.0, 86400 * SECOND
KEPT_OF_A_DAY = 100
"""A skipped firing keeps its payload only if its trigger fired less often in a day, so that noise fills no disk."""
NOTHING = Changes()
BY_HAND = "manual:"
"""The beginning of the key of a firing that a person made."""
MOST_IN_A_MINUTE = 60
"""How often a trigger fires in a minute at most, unless its option `per_minute` is lower."""


class Recorded(NamedTuple):
    """The stored firing, and whether this call stored it. Otherwise the trigger had fired before for the same key."""

    firing: Firing
    created: bool


NOBODY = Trigger(id="", automation_id="", kind="webhook", options={"sign": "github"}, secret=make_secret())
"""The webhook whose signature is checked if there is no webhook with an id, so that both take the same time."""


class Delivered(NamedTuple):
    """What a delivery to a webhook did: it fired, it did not pass the filter, or it was only a test of the sender."""

    status: Literal["fired", "filtered", "ping"]
    firing: Firing | None = None
    created: bool = False


class Triggers:
    """Service: the triggers of automations and their firings. `find_url` returns the address of the server."""

    def __init__(self, store: Store, clock: Clock, find_url: Callable[[], str] = lambda: "") -> None:
        self._store = store
        self._clock = clock
        self._find_url = find_url
        self._counting = asyncio.Lock()

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
            is_noise = skipped is not None or automation.status != "active"
            if is_noise and limited and await self._store.count_firings(trigger.id, now - DAY) >= KEPT_OF_A_DAY:
                payload = None
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

    # -- webhooks ------------------------------------------------------------------------------------------------------

    async def check_delivery(self, trigger_id: str, headers: Headers, body: bytes) -> Trigger:
        """Return the webhook with this id. Raise Unauthorized if there is none, or if its secret did not sign the body.

        Both errors are the same, so that nobody can find out which webhooks exist. Names of headers are in lower case.
        """
        found = await self._store.get_trigger(trigger_id)
        trigger = found if found is not None and found.kind == "webhook" and found.secret else NOBODY
        signed = is_signed(trigger.options, trigger.secret or "", headers, body, self._clock.now())
        if not signed or trigger is NOBODY:
            raise Unauthorized(
                "the delivery is not signed by the secret of this webhook, or it is too old; check its address, its "
                "secret and the clocks."
            )
        return trigger

    async def deliver(self, trigger: Trigger, headers: Headers, body: bytes, payload: Any) -> Delivered:
        """Fire a webhook for a delivery that `check_delivery` accepted, unless its filter does not let it pass."""
        if trigger.options.get("sign") == "github" and headers.get("x-github-event") == "ping":
            return Delivered("ping")
        summary = summarise(payload, headers)
        if unmet := find_unmet(trigger.options.get("filter", ()), payload, headers):
            await self._count_filtered(trigger, summary, unmet)
            return Delivered("filtered")
        key = find_delivery_id(trigger.options, headers, body)
        fired = await self.fire(trigger, key=key, summary=summary, payload=write_payload(payload))
        return Delivered("fired", *fired)

    async def _count_filtered(self, trigger: Trigger, summary: str, unmet: str) -> None:
        """Count a delivery that the filter stopped. Only the last one is described, so that noise needs no space."""
        async with self._counting:
            current = await self._store.get_trigger(trigger.id) or trigger
            state = dict(current.state or {})
            state |= {
                "filtered": state.get("filtered", 0) + 1, "filtered_at": self._clock.now(), "filtered_why": unmet,
                "filtered_summary": summary,
            }  # fmt: skip
            await self._store.apply(Changes(updates=(Update("trigger", trigger.id, {"state": state}, {}),)))

    def url_of(self, trigger_id: str) -> str:
        """Return the address to which senders deliver."""
        return f"{self._find_url()}/api/v1/hooks/{trigger_id}"

    async def list_webhooks(self, ids: Iterable[str]) -> list[dict[str, Any]]:
        """Return the addresses and secrets of these webhooks, for the person who has just created them."""
        found = [await self._store.get_trigger(trigger_id) for trigger_id in ids]
        return [self._show_secret(trigger) for trigger in found if trigger is not None]

    async def secret(self, trigger_id: str, *, rotate: bool = False, actor: AnyActor = None) -> dict[str, Any]:
        """Return the address and the secret of a webhook. With `rotate` it gets a new secret first."""
        trigger = require(await self._store.get_trigger(trigger_id.strip()), "trigger", trigger_id)
        await self._get_managed(trigger.automation_id, actor)
        if trigger.kind != "webhook":
            raise InvalidInput(f"trigger {trigger.id} is no webhook; only a webhook has a secret.", field="trigger_id")
        if rotate:
            await self._store.apply(
                Changes(updates=(Update("trigger", trigger.id, {"secret": make_secret()}, {"secret": trigger.secret}),))
            )
            trigger = require(await self._store.get_trigger(trigger.id), "trigger", trigger.id)
        return self._show_secret(trigger)

    def _show_secret(self, trigger: Trigger) -> dict[str, Any]:
        return {"trigger_id": trigger.id, "url": self.url_of(trigger.id), "secret": trigger.secret}

    # -- by hand -------------------------------------------------------------------------------------------------------

    async def of_automation(self, automation_id: str, *, actor: AnyActor = None) -> list[dict[str, Any]]:
        """Return the triggers of an automation with their addresses, and when each fired or filtered last."""
        automation = await find_automation(self._store, automation_id)
        authorize(actor, "read", own_record(automation))
        found = [await self._store.get_trigger(entry["id"]) for entry in automation.triggers]
        names = {key: await self._store.get_automation(key) for key in list_upstream(automation.triggers)}
        titles = {key: each.label for key, each in names.items() if each is not None}
        return [self._describe(trigger, titles) for trigger in found if trigger is not None]

    def _describe(self, trigger: Trigger, titles: Mapping[str, str]) -> dict[str, Any]:
        state: Mapping[str, Any] = trigger.state or {} if trigger.kind == "webhook" else {}
        return {
            **trigger.snapshot(),
            "text": describe_trigger(trigger.options, titles),
            "url": self.url_of(trigger.id) if trigger.kind == "webhook" else None,
            "filtered": state.get("filtered", 0),
            "filtered_at": iso(state.get("filtered_at")),
            "filtered_why": state.get("filtered_why"),
            "filtered_summary": state.get("filtered_summary"),
        }

    async def test(
        self, automation_id: str, *, trigger_id: str | None = None, payload: Any = None, actor: AnyActor = None
    ) -> Firing:
        """Fire a trigger of an automation by hand, the first one by default. Its filter is not asked."""
        automation = await self._get_managed(automation_id, actor)
        if automation.status != "active":
            raise Conflict(f"automation {automation.id} is {automation.status}; resume it first.")
        ids = [entry["id"] for entry in automation.triggers]
        if not ids:
            raise Conflict(f"automation {automation.id} has no trigger; start it with `midwatch automation run`.")
        if trigger_id is not None and trigger_id not in ids:
            raise NotFound("trigger", trigger_id)
        trigger = require(await self._store.get_trigger(trigger_id or ids[0]), "trigger", trigger_id or ids[0])
        summary = "by hand" if payload is None else f"by hand: {summarise(payload, {})}"
        text = None if payload is None else write_payload(payload)
        key = f"{BY_HAND}{new_id('x', self._clock.now())}"
        return (await self.fire(trigger, key=key, summary=summary, payload=text)).firing

    async def _get_managed(self, automation_id: str, actor: AnyActor) -> Automation:
        automation = await find_automation(self._store, automation_id)
        authorize(actor, "manage", own_record(automation))
        return automation

    # -- firings -------------------------------------------------------------------------------------------------------

    async def firings(self, automation_id: str, limit: int = 20, *, actor: AnyActor = None) -> list[Firing]:
        """Return the firings of an automation, newest first."""
        automation = await find_automation(self._store, automation_id)
        authorize(actor, "read", own_record(automation))
        return await self._store.list_firings(automation.id, min(max(1, limit), 200))

    async def get(self, firing_id: str, *, actor: AnyActor = None) -> Firing:
        """Return the firing, or raise NotFound."""
        firing = require(await self._store.get_firing(firing_id.strip()), "firing", firing_id)
        automation = await self._store.get_automation(firing.automation_id)
        if automation is not None:
            authorize(actor, "read", own_record(automation))
        return firing

    async def describe(self, firing: Firing, *, actor: AnyActor = None) -> dict[str, Any]:
        """Return a firing as JSON, with its payload if the actor may manage its automation."""
        try:
            await self._get_managed(firing.automation_id, actor)
        except (Forbidden, NotFound):
            return {**firing.snapshot(), "payload": None}
        return {**firing.snapshot(), "payload": firing.payload}

    async def replay(self, firing_id: str, *, actor: AnyActor = None) -> Firing:
        """Fire again with the stored payload of a firing, and return the new firing."""
        firing = await self.get(firing_id)
        automation = await self._get_managed(firing.automation_id, actor)
        if automation.status != "active":
            raise Conflict(f"automation {automation.id} is {automation.status}; resume it first.")
        trigger = await self._store.get_trigger(firing.trigger_id)
        if trigger is None:
            raise NotFound("trigger", firing.trigger_id)
        if firing.payload is None and firing.replay_of is None and not firing.key.startswith(BY_HAND):
            raise Conflict(f"the payload of firing {firing.id} was not kept; ask the sender to deliver it again.")
        now = self._clock.now()
        again, step = record_firing(
            automation, trigger, now, key=f"{firing.id}@{now}", summary=firing.summary, payload=firing.payload,
            chain_id=None, replay_of=firing.id,
        )  # fmt: skip
        await self._store.apply(step)
        return again


def write_payload(payload: Any) -> str:
    """Return a payload as JSON, in the order in which it was sent. Lines and indents are added if it is short."""
    text = json.dumps(payload, ensure_ascii=False)
    return json.dumps(payload, indent=2, ensure_ascii=False) if len(text) <= PAYLOAD_SHOWN else text
