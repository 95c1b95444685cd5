"""Automation transfer: export automations as JSON from one home and import them into this or another one.

Settings travel, and how many runs there were; results, threads, tasks and the targets of routes stay behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.base.schedule import Schedule, next_run_at
from midwatch.domain import automation as rules
from midwatch.domain.automation import Automation, normalise, validate
from midwatch.domain.changes import Changes, change_record, event_about
from midwatch.domain.channel import hide_target
from midwatch.domain.event import AutomationChanged, AutomationCreated
from midwatch.domain.fields import changeable, settable
from midwatch.domain.identity import Actor
from midwatch.domain.requests import MAX_PROMPT, Submission
from midwatch.domain.session import check_key
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES
from midwatch.services.authorization import check_manager
from midwatch.services.request_checks import check
from midwatch.services.tasks import Tasks

MOST = 100_000
"""Automations that are written out at once."""
SETTINGS = changeable(Automation) - {"next_run_at"} | {"schedule"}
"""What an import sets of an automation that is here already."""
MADE_WITH = settable(Automation) - {"next_run_at", "resume_thread_id"} | {"schedule", "run_count", "paused_why"}
"""What an import sets of a new one."""


class Taken(NamedTuple):
    """What became of one automation of an import: made, changed, the same already, or left because it is deleted."""

    id: str
    what: Literal["made", "changed", "same", "deleted"]


class AutomationTransfer:
    """Service: carries automations from home to home."""

    def __init__(self, store: Store, clock: Clock, tasks: Tasks, check_route: Callable[[str], str]) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._check_route = check_route

    async def export(self, ids: Iterable[str] = ()) -> list[Automation]:
        """These automations, or all that are not deleted, newest first."""
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return await self._store.list_automations(None, ("active", "paused"), MOST)
        found = {one: await self._store.get_automation(one) for one in wanted}
        if missing := [one for one, automation in found.items() if automation is None]:
            raise NotFound("automation", missing[0])
        return [automation for automation in found.values() if automation is not None]

    async def take(self, shots: Sequence[Mapping[str, Any]], *, actor: Actor) -> list[Taken]:
        """Make those that are not here and change those that differ; all of it, or on bad input nothing. The same
        again changes nothing."""
        ids = [str(shot["id"]) for shot in shots]
        if twice := [one for one, count in Counter(ids).items() if count > 1]:
            raise InvalidInput(f"automation {twice[0]} is there twice; leave one out.", field="automations")
        for _ in range(TRIES):
            changes, taken, now = Changes(), [], self._clock.now()
            for shot in shots:
                step, what = await self._one(shot, actor, now)
                changes = changes.plus(step)
                taken.append(Taken(str(shot["id"]), what))
            if changes == Changes():
                return taken
            try:
                await self._store.apply(changes)
            except Conflict:
                continue
            return taken
        raise Conflict("the automations keep changing; try again.")

    async def _one(
        self, shot: Mapping[str, Any], actor: Actor, now: int
    ) -> tuple[Changes, Literal["made", "changed", "same", "deleted"]]:
        found = await self._store.get_automation(shot["id"])
        if found is not None and found.status == "deleted":
            return Changes(), "deleted"
        try:
            kept = found.route if found is not None and shot.get("route") == hide_target(found.route) else None
            said = await self._checked({**shot, "route": kept or shot.get("route")})
            if found is None:
                return self._made(shot, said, actor, now), "made"
            changes = self._changed(found, {name: said[name] for name in SETTINGS if name in said}, actor, now)
        except InvalidInput as wrong:
            wrong.args = (f"{shot['id']}: {wrong}",)
            raise
        return changes, "same" if changes == Changes() else "changed"

    async def _checked(self, shot: Mapping[str, Any]) -> dict[str, Any]:
        """What it says of an automation's fields, as far as they make sense here."""
        said = {name: shot[name] for name in MADE_WITH if name in shot}
        said["schedule"] = Schedule.from_data(said["schedule"]).snapshot()
        said["agent"] = await self._tasks.known_agent(said["agent"])
        if said.get("route"):
            said["route"] = self._check_route(said["route"])
        if "tags" in said:
            said["tags"] = tuple(said["tags"])
        return said

    def _made(self, shot: Mapping[str, Any], said: dict[str, Any], actor: Actor, now: int) -> Changes:
        session = said.pop("session_key", "")
        made = normalise(
            Automation(
                id=shot["id"], **said, session_key=check_key(session) if session else "", created_at=now,
                updated_at=now,
                creator=(shot.get("creator") if actor.role == "owner" else None) or actor.name,
                status="active" if shot.get("status", "active") == "active" else "paused",
            )
        )  # fmt: skip
        made = self._timed(made, now)
        _check(made)
        told = AutomationCreated(
            automation_id=made.id, title=made.name, schedule=made.schedule, next_run_at=made.snapshot()["next_run_at"]
        )
        return Changes(records=(made,), events=(event_about(made, told, now, actor.name),))

    def _changed(self, found: Automation, said: dict[str, Any], actor: Actor, now: int) -> Changes:
        after = normalise(replace(found, **said))
        changed = {name: getattr(after, name) for name in SETTINGS if getattr(after, name) != getattr(found, name)}
        if not changed:
            return Changes()
        check_manager(actor, found.creator, found.manage_mode)
        if "schedule" in changed or after.spent:
            after = self._timed(after, now)
        _check(after)
        for name in ("status", "paused_why", "next_run_at"):
            if getattr(after, name) != getattr(found, name):
                changed[name] = getattr(after, name)
        told = AutomationChanged(automation_id=found.id, fields=tuple(sorted(changed)), status=after.status)
        return change_record(found, told, now, actor.name, **changed)

    def _timed(self, made: Automation, now: int) -> Automation:
        """With its next run; one that has none is paused."""
        if made.status != "active":
            return replace(made, next_run_at=None)
        following = next_run_at(made.times, now)
        over = rules.SPENT if made.spent else rules.OVER if following is None else None
        if over:
            return replace(made, status="paused", paused_why=over, next_run_at=None)
        return replace(made, next_run_at=following, paused_why=None)


def _check(made: Automation) -> None:
    validate(made)
    wish: Submission = {"workdir": made.workdir, "timeout": made.timeout_seconds, "on_crash": made.on_crash}
    check(made.prompt, wish, MAX_PROMPT)
