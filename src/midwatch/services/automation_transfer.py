"""The export and import of automations: export automations of a home as JSON, and import them into the same or another.

An export contains the settings of an automation and the number of its runs. It contains no results, thread ids, tasks,
targets of routes, or values of secret variables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from midwatch.base.clock import Clock
from midwatch.base.errors import InvalidInput
from midwatch.base.schedule import Schedule, next_run_at
from midwatch.base.timetable import NO_CALENDARS, Calendars, Timetable
from midwatch.domain import automation as rules
from midwatch.domain.automation import Automation, normalise
from midwatch.domain.chain import list_upstream
from midwatch.domain.changes import Changes, change_record
from midwatch.domain.channel import hide_target, name_again
from midwatch.domain.event import AutomationChanged
from midwatch.domain.fields import changeable, settable
from midwatch.domain.identity import Actor, AnyActor
from midwatch.domain.notice import CheckRoute
from midwatch.domain.run_env import check_env, restore_env
from midwatch.domain.session import check_key
from midwatch.domain.store import Store
from midwatch.domain.trigger import define, list_new_secrets, write_triggers
from midwatch.services.authorization import allows, authorize, own_record
from midwatch.services.automations import check_automation, create_automation, find_automation, refuse_taken_name
from midwatch.services.chain_links import check_links
from midwatch.services.records import apply_with_retry
from midwatch.services.request_checks import resolve_workdir
from midwatch.services.tasks import Tasks

MAX_EXPORT = 100_000
SETTINGS = changeable(Automation) - {"next_run_at"} | {"schedule"}
"""The fields of an existing automation that an import may change."""
NEW_SETTINGS = settable(Automation) - {"next_run_at", "resume_thread_id", "idempotency_key"} | {
    "schedule",
    "run_count",
    "paused_why",
}
"""The fields of a new automation that an import sets."""


class ImportResult(NamedTuple):
    """What an import did with one automation: it was made, it was changed, or nothing.

    Nothing is done if the automation is the "same" as in the import, or is "deleted" in this home.
    """

    id: str
    what: Literal["made", "changed", "same", "deleted"]
    new_webhooks: tuple[str, ...] = ()
    """The ids of the webhooks that got a new secret. An export has no secrets."""


class AutomationTransfer:
    """Service: exports and imports automations."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tasks: Tasks,
        check_route: CheckRoute,
        calendars: Calendars = NO_CALENDARS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._check_route = check_route
        self._calendars = calendars

    async def export(self, ids: Iterable[str] = (), *, actor: AnyActor = None) -> list[Automation]:
        """Return the automations with these ids. Without ids, return all that are not deleted, newest first."""
        authorize(actor, "oversee")
        unique_ids = list(dict.fromkeys(ids))
        if not unique_ids:
            return await self._store.list_automations(None, ("active", "paused"), MAX_EXPORT)
        return [await find_automation(self._store, key) for key in unique_ids]

    async def import_all(self, shots: Sequence[Mapping[str, Any]], *, actor: Actor) -> list[ImportResult]:
        """Import automations: create those that are missing in this home, and change those that differ.

        If one automation is invalid, none is imported. A second import of the same automations changes nothing.
        """
        authorize(actor, "operate")
        ids = [str(shot["id"]) for shot in shots]
        if twice := [key for key, count in Counter(ids).items() if count > 1]:
            raise InvalidInput(f"the import has automation {twice[0]} twice; remove one of them.", field="automations")
        names = Counter(shot["name"] for shot in shots if shot.get("name"))
        if shared := [name for name, count in names.items() if count > 1]:
            raise InvalidInput(f"the import has the name {shared[0]!r} twice; change one of them.", field="automations")

        async def compute() -> tuple[list[ImportResult], Changes]:
            changes, results, now = Changes(), [], self._clock.now()
            for shot in shots:
                step, what = await self._import(shot, actor, now)
                changes = changes.plus(step)
                results.append(ImportResult(str(shot["id"]), what, list_new_secrets(step)))
            await self._check_links(shots)
            return results, changes

        return await apply_with_retry(self._store, "one of the automations", compute)

    async def _check_links(self, shots: Sequence[Mapping[str, Any]]) -> None:
        """Raise InvalidInput if an automation would start after itself, or after one that is not in this home."""
        changed = {str(shot["id"]): shot["triggers"] for shot in shots if shot.get("triggers")}
        for key, definitions in changed.items():
            for before in list_upstream(definitions):
                if not any(shot["id"] == before for shot in shots) and await self._store.get_automation(before) is None:
                    raise InvalidInput(
                        f"{key}: it starts after {before}, which is not in this home; import that one, too.",
                        field="triggers",
                    )
        await check_links(self._store, changed)

    async def _import(
        self, shot: Mapping[str, Any], actor: Actor, now: int
    ) -> tuple[Changes, Literal["made", "changed", "same", "deleted"]]:
        current = await self._store.get_automation(shot["id"])
        if current is not None and current.status == "deleted":
            return Changes(), "deleted"
        try:
            route = current.route if current is not None and shot.get("route") == hide_target(current.route) else None
            again = name_again(route) if route else shot.get("route")
            values = await self._check_values({**shot, "route": again}, current)
            await refuse_taken_name(self._store, shot["id"], values.get("name"))
            if "env" in values:
                check_env(values["env"])
                values["env"] = restore_env(current.env if current else None, values["env"])
            if "workdir" in values:
                values["workdir"] = resolve_workdir(values["workdir"], current.workdir if current else None)
            if current is None:
                if values.get("session_key"):
                    await self._tasks.authorization.check_session(actor, "manage", values["session_key"].strip())
                return self._create(shot, values, actor, now), "made"
            changes = self._change(current, {name: values[name] for name in SETTINGS if name in values}, actor, now)
        except InvalidInput as problem:
            problem.args = (f"{shot['id']}: {problem}",)
            raise
        return changes, "same" if changes == Changes() else "changed"

    async def _check_values(self, shot: Mapping[str, Any], current: Automation | None) -> dict[str, Any]:
        """Return the checked values of an automation. Raise InvalidInput if a value cannot be used in this home.

        A trigger that the `current` automation does not have gets a new id: its old one may be taken.
        """
        values = {name: shot[name] for name in NEW_SETTINGS if name in shot}
        values["schedule"] = Schedule.from_data(values["schedule"]).snapshot()
        values["agent"] = await self._tasks.check_agent(values["agent"])
        if values.get("route"):
            values["route"] = self._check_route(values["route"])
        for name in ("tags", "days_off", "quiet_hours"):
            if name in values:
                values[name] = tuple(values[name])
        if "triggers" in values:
            values["triggers"] = define(values["triggers"], self._clock.now(), current.triggers if current else ())
        Timetable.make(
            Schedule.from_data(values["schedule"]), values.get("days_off", ()), values.get("quiet_hours", ()),
            self._calendars,
        )  # fmt: skip
        return values

    def _create(self, shot: Mapping[str, Any], values: dict[str, Any], actor: Actor, now: int) -> Changes:
        session = values.pop("session_key", "")
        draft = Automation(
            id=shot["id"], **values, session_key=check_key(session) if session else "", created_at=now, updated_at=now,
            creator=(shot.get("creator") if allows(actor, "administer") else None) or actor.name,
            status="active" if shot.get("status", "active") == "active" else "paused",
        )  # fmt: skip
        automation = self._set_next_run(normalise(draft), now)
        check_automation(automation)
        return create_automation(automation, now, actor.name)

    def _change(self, current: Automation, values: dict[str, Any], actor: Actor, now: int) -> Changes:
        after = normalise(replace(current, **values))
        changed = {name: getattr(after, name) for name in SETTINGS if getattr(after, name) != getattr(current, name)}
        if not changed:
            return Changes()
        authorize(actor, "manage", own_record(current))
        if "schedule" in changed or after.exhausted:
            after = self._set_next_run(after, now)
        check_automation(after)
        for name in ("status", "paused_why", "next_run_at"):
            if getattr(after, name) != getattr(current, name):
                changed[name] = getattr(after, name)
        payload = AutomationChanged(automation_id=current.id, fields=tuple(sorted(changed)), status=after.status)
        return change_record(current, payload, now, actor.name, **changed).plus(write_triggers(current, after, now))

    def _set_next_run(self, automation: Automation, now: int) -> Automation:
        """Return the automation with the time of its next run. If it has no next run, return it paused."""
        if automation.status != "active":
            return replace(automation, next_run_at=None)
        following = next_run_at(automation.times, now)
        waits = following is None and not automation.triggers
        over = rules.SPENT if automation.exhausted else rules.OVER if waits else None
        if over:
            return replace(automation, status="paused", paused_why=over, next_run_at=None)
        return replace(automation, next_run_at=following, paused_why=None)
