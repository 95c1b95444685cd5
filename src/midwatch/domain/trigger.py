"""Triggers: reasons other than the time to start a run of an automation.

A trigger waits for a delivery at a webhook, a changed file, a new commit, the end of other work, or an event. Each time
its condition holds, it fires: a firing is stored once, and the scheduler starts one run for it or skips it with a
reason. The definition of a trigger is in the field `triggers` of its automation. Its row has its state and its secret.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.base.ids import new_id
from midwatch.base.text import cut, escape_controls
from midwatch.domain.changes import Changes, Update, event_about
from midwatch.domain.event import AutomationTriggered
from midwatch.domain.fields import AT, Example, Hidden, JsonRecord
from midwatch.domain.trigger_options import check_options
from midwatch.domain.webhook import check_secret, make_secret

if TYPE_CHECKING:
    from midwatch.domain.automation import Automation

Kind = Literal["webhook", "file", "git", "after", "event"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Status = Literal["pending", "started", "skipped"]

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "pending": frozenset({"started", "skipped"}),
    "started": frozenset(),
    "skipped": frozenset(),
}
MOST_TRIGGERS = 20
"""The most triggers of one automation."""
MOST_WAITING = 100
"""The most firings of an automation that wait at one time; the next ones are skipped."""
LONGEST_PAYLOAD = 262_144
"""The most characters of a payload that are stored."""
PAYLOAD_SHOWN = 32_000
"""The most characters of a payload that the agent gets."""
SUMMARY_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger(JsonRecord):
    """The row of a trigger. `options` is its definition, a copy of the entry in the field `triggers`."""

    noun: ClassVar[str] = "trigger"

    id: Annotated[str, Example("tr_06f2m8yq3kq5r0v9x1w2")]
    automation_id: Annotated[str, Example("am_06f2m8yq3kq5r0v9x1w2")]
    kind: Annotated[Kind, Example("webhook")]
    options: Annotated[Mapping[str, Any], Example({"kind": "webhook", "sign": "github"})]
    secret: Hidden[str | None] = None
    """The secret that signs deliveries to a webhook."""
    state: Hidden[Mapping[str, Any] | None] = None
    """What the trigger has seen, such as the last commit."""
    state_at: Hidden[int | None] = None
    """When the state was written. A change of the state guards it."""
    created_at: int = 0
    fired_at: int | None = None
    removed_at: Hidden[int | None] = None
    """When the trigger was removed from its automation. Its firings stay for some time."""

    @property
    def unread_at(self) -> int | None:
        """Return since when its files or its branch cannot be read, or None if they can."""
        return (self.state or {}).get("unread_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing(JsonRecord):
    """One time that the condition of a trigger held.

    `key` names the cause, such as the id of a delivery: a trigger fires once for each key. `payload` is data for the
    agent. `chain_id` is the first firing or task of the chain of automations that this firing belongs to.
    """

    noun: ClassVar[str] = "firing"

    id: Annotated[str, Example("f_06f2m8yq3kq5r0v9x1w2")]
    automation_id: Annotated[str, Example("am_06f2m8yq3kq5r0v9x1w2")]
    trigger_id: Annotated[str, Example("tr_06f2m8yq3kq5r0v9x1w2")]
    kind: Annotated[Kind, Example("webhook")]
    key: Annotated[str, Example("72d3162e-cc78-11e3-81ab-4c9367dc0958")]
    summary: Annotated[str, Example("push to main")]
    payload: Hidden[str | None] = None
    status: Status = "pending"
    reason: str | None = None
    """Why the firing was skipped."""
    task_id: Annotated[str | None, Example("t_06f2m8yq3kq5r0v9x1w2")] = None
    chain_id: str | None = None
    path: Hidden[tuple[str, ...]] = ()
    """The automations whose work led to this firing, and its own."""
    replay_of: str | None = None
    created_at: int = 0
    due_at: int = 0
    ended_at: Annotated[int | None, Example(AT)] = None

    @property
    def revision(self) -> int:
        """Return the time at which the firing is due: nothing else of a pending firing changes."""
        return self.due_at


class LateFirings(NamedTuple):
    """The firings of an automation that wait too long: how many there are, and when the first of them was due."""

    automation_id: str
    size: int
    due_at: int


class TriggerStore(Protocol):
    """Port: triggers and their firings. They are written as part of a step, with `Changes`."""

    async def get_trigger(self, trigger_id: str) -> Trigger | None:
        """Return the trigger, or None."""

    async def list_triggers(self, kinds: Collection[Kind], paused: bool = False) -> list[Trigger]:
        """Return all triggers of these kinds whose automation is active, or also those of paused ones, by id."""

    async def list_triggers_naming(self, kind: Kind, words: Sequence[str]) -> list[Trigger]:
        """Return triggers of a kind, by id, if their options contain one of the `words`, and perhaps others.

        The automations of these triggers are active or paused.
        """

    async def get_firing(self, firing_id: str) -> Firing | None:
        """Return the firing, or None."""

    async def find_firing(self, trigger_id: str, key: str) -> Firing | None:
        """Return the firing of a trigger with this key, or None."""

    async def find_firing_of(self, task_id: str) -> Firing | None:
        """Return the firing that started this task, or None."""

    async def list_firings(self, automation_id: str, limit: int = 20) -> list[Firing]:
        """Return the firings of an automation, newest first."""

    async def list_due_firings(self, now: int, limit: int = 64) -> list[Firing]:
        """Return due firings, earliest first, at most one for each automation.

        Firings of an automation that queues its runs are left out while it has an open run.
        """

    async def find_next_firing_at(self, now: int) -> int | None:
        """Return the first time after `now` at which a pending firing becomes due, or None."""

    async def count_firings(self, trigger_id: str, since: int) -> int:
        """Return how often the trigger fired since a moment, without replays."""

    async def count_waiting_firings(self, automation_id: str) -> int:
        """Return how many firings of the automation are pending."""

    async def list_late_firings(self, before: int, limit: int) -> list[LateFirings]:
        """Return how many firings of each automation are pending since `before` or longer, the longest first."""

    async def list_unread_triggers(self, limit: int) -> list[Trigger]:
        """Return the triggers of active automations whose files or branches cannot be read, oldest first."""

    async def prune_firings(self, before: int) -> int:
        """Remove firings that ended before a moment, and return how many."""


# -- definitions -----------------------------------------------------------------------------------------------------


def define(entries: Collection[Any], now: int, old: Collection[Mapping[str, Any]] = ()) -> tuple[dict[str, Any], ...]:
    """Return the checked definitions of an automation's triggers, each with an id.

    A definition without an id keeps the id of the `old` definition that is otherwise equal, so that it keeps its state.
    A webhook keeps the id of an old one that is signed in the same way, so that it keeps its address and its secret.
    """
    if len(entries) > MOST_TRIGGERS:
        raise InvalidInput(f"there are too many triggers; use at most {MOST_TRIGGERS}.", field="triggers")
    checked: list[dict[str, Any]] = []
    for entry in entries:
        if not isinstance(entry, Mapping) or entry.get("kind") not in KINDS:
            raise InvalidInput(f"a trigger needs a `kind`: one of {', '.join(KINDS)}.", field="triggers")
        given = {name: value for name, value in entry.items() if name not in ("id", "secret")}
        checked.append({"kind": entry["kind"], **check_options(entry["kind"], given)})
    kept = _keep_ids([entry.get("id") for entry in entries], checked, old)
    return tuple({"id": kept.get(place) or new_id("tr", now), **options} for place, options in enumerate(checked))


def _keep_ids(
    wanted: Sequence[Any], checked: Sequence[Mapping[str, Any]], old: Collection[Mapping[str, Any]]
) -> dict[int, str]:
    """Return the ids of old definitions that new ones keep, by the place of the new one."""
    left = {entry["id"]: entry for entry in old}
    kept: dict[int, str] = {}
    for place, (trigger_id, options) in enumerate(zip(wanted, checked, strict=True)):
        if isinstance(trigger_id, str) and trigger_id in kept.values():
            raise InvalidInput(f"trigger {trigger_id} is there twice; remove one of them.", field="triggers")
        if isinstance(trigger_id, str) and left.get(trigger_id, {}).get("kind") == options["kind"]:
            kept[place] = trigger_id
            del left[trigger_id]
    for is_same in (_is_equal, _is_same_webhook):
        for place, options in enumerate(checked):
            same = next((key for key, was in left.items() if is_same(was, options)), None)
            if place not in kept and same is not None:
                kept[place] = same
                del left[same]
    return kept


def _is_equal(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return {**old, "id": None} == {**new, "id": None}


def _is_same_webhook(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old["kind"] == new["kind"] == "webhook" and old.get("sign") == new.get("sign")


def read_secrets(entries: Collection[Any], defined: Collection[Mapping[str, Any]]) -> dict[str, str]:
    """Return the secrets in the definitions that a person gave, by the ids of the triggers that `define` returned."""
    secrets = {}
    for entry, trigger in zip(entries, defined, strict=True):
        if entry.get("secret") is None:
            continue
        if trigger["kind"] != "webhook":
            raise InvalidInput(f"a {trigger['kind']} trigger has no secret; leave it out.", field="triggers")
        secrets[trigger["id"]] = check_secret(entry["secret"], trigger["sign"])
    return secrets


def list_new_webhooks(before: Automation | None, after: Automation) -> list[str]:
    """Return the ids of the webhooks that get a new secret: the new ones, and those that are signed in another way."""
    signs = {entry["id"]: entry.get("sign") for entry in before.triggers} if before else {}
    webhooks = [entry for entry in after.triggers if entry["kind"] == "webhook"]
    return [entry["id"] for entry in webhooks if signs.get(entry["id"], "") != entry.get("sign")]


def write_triggers(
    before: Automation | None, after: Automation, now: int, secrets: Mapping[str, str] | None = None
) -> Changes:
    """Return the changes that give the rows of an automation's triggers the definitions of the changed automation.

    `secrets` are secrets of webhooks that a person chose, by the id of the trigger. A new webhook without one gets a
    new secret.
    """
    secrets = {**{key: make_secret() for key in list_new_webhooks(before, after)}, **(secrets or {})}
    old = {entry["id"]: entry for entry in before.triggers} if before else {}
    new = {entry["id"]: entry for entry in after.triggers}
    records = tuple(
        Trigger(
            id=key, automation_id=after.id, kind=entry["kind"], options=entry, secret=secrets.get(key), created_at=now
        )
        for key, entry in new.items()
        if key not in old
    )
    updates = tuple(
        Update("trigger", key, {"options": entry, "state": None, "state_at": now}, {})
        for key, entry in new.items()
        if key in old and old[key] != entry
    )
    updates += tuple(Update("trigger", key, {"secret": secret}, {}) for key, secret in secrets.items() if key in old)
    removed = tuple(Update("trigger", key, {"removed_at": now, "secret": None}, {}) for key in old.keys() - new.keys())
    return Changes(records=records, updates=updates + removed)


def list_new_secrets(changes: Changes) -> tuple[str, ...]:
    """Return the ids of the webhooks that these changes give a new secret."""
    new = [record.id for record in changes.records if isinstance(record, Trigger) and record.secret]
    changed = [update.id for update in changes.updates if update.noun == "trigger" and update.fields.get("secret")]
    return (*new, *changed)


def restart_triggers(automation: Automation, now: int) -> Changes:
    """Return the changes after which triggers fire only for what happens from now on: their automation is resumed."""
    updates = []
    for entry in automation.triggers:
        if entry["kind"] in ("file", "git"):
            updates.append(Update("trigger", entry["id"], {"state": None, "state_at": now}, {}))
        elif entry["kind"] != "webhook" and automation.status == "deleted":  # nobody followed the events
            updates.append(Update("trigger", entry["id"], {"created_at": now}, {}))
    return Changes(updates=tuple(updates))


# -- firings ---------------------------------------------------------------------------------------------------------


def record_firing(
    automation: Automation,
    trigger: Trigger,
    now: int,
    *,
    key: str,
    summary: str,
    payload: str | None = None,
    delay: float = 0.0,
    chain_id: str | None = None,
    path: tuple[str, ...] = (),
    replay_of: str | None = None,
    skipped: str | None = None,
) -> tuple[Firing, Changes]:
    """Return the firing of a trigger, and the step that stores it.

    `skipped` is the reason why no run starts. A paused or deleted automation starts no run either.
    """
    reason = skipped if automation.status == "active" else f"its automation is {automation.status}"
    firing_id = new_id("f", now)
    shown = escape_controls(" ".join(summary.split()))  # a stranger may have written it
    firing = Firing(
        id=firing_id, automation_id=automation.id, trigger_id=trigger.id, kind=trigger.kind, key=cut(key, 500),
        summary=cut(shown, SUMMARY_SHOWN), payload=payload[:LONGEST_PAYLOAD] if payload else payload,
        status="skipped" if reason else "pending", reason=reason, chain_id=chain_id or firing_id,
        path=(*(name for name in path if name != automation.id), automation.id), replay_of=replay_of, created_at=now,
        due_at=now + int(delay * SECOND), ended_at=now if reason else None,
    )  # fmt: skip
    payload_event = AutomationTriggered(
        automation_id=automation.id, trigger_id=trigger.id, trigger=trigger.kind, firing_id=firing.id,
        summary=firing.summary, skipped=reason,
    )  # fmt: skip
    return firing, Changes(
        records=(firing,),
        updates=(Update("trigger", trigger.id, {"fired_at": now}, {}),),
        events=(event_about(automation, payload_event, now),),
    )


def write_state(trigger: Trigger, state: Mapping[str, Any], now: int) -> Changes:
    """Return the step that stores what a trigger has seen. It fails if the state was changed meanwhile."""
    at = max(now, (trigger.state_at or 0) + 1)
    update = Update("trigger", trigger.id, {"state": state, "state_at": at}, {"state_at": trigger.state_at})
    return Changes(updates=(update,))


def end_firing(firing: Firing, now: int, *, task_id: str | None = None, reason: str | None = None) -> Update:
    """Return the update that ends a pending firing: its run has started, or it is skipped for a reason."""
    status: Status = "started" if task_id else "skipped"
    fields = {"status": status, "task_id": task_id, "reason": reason, "ended_at": now}
    return Update(firing.noun, firing.id, fields, {"status": firing.status})
