"""The automation service: make, look, change, pause, resume, run now, delete. What one is stands in
`midwatch.domain.automation`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.base.ids import new_id
from midwatch.base.schedule import Schedule, find_zone, host_zone, local_iso, next_run_at, parse_moment, upcoming
from midwatch.domain import automation as rules
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import TRANSITIONS, Automation, Status, Times, normalise, validate
from midwatch.domain.changes import Changes, change_record, event_about, update_record
from midwatch.domain.event import AutomationChanged, AutomationCreated
from midwatch.domain.fields import changeable, clearable, name_as_record, settable
from midwatch.domain.identity import AnyActor, actor_name
from midwatch.domain.requests import Submission, refuse_unknown
from midwatch.domain.session import Session, check_key, gate_key
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES, Task
from midwatch.services.authorization import AUTOMATION_FIELDS, check_manager
from midwatch.services.request_checks import check, check_repository
from midwatch.services.tasks import Tasks, stop_task

KEPT_SECONDS = 30 * 86400.0
"""Deleted ones can be brought back for this long."""
LISTED, MOST_LISTED = 20, 200
NEXT_RUNS, LAST_RUNS = 5, 10
DAY = 86400 * SECOND
DAY_RUNS, DAY_RUNS_OF_ONE = 3000, 300
"""How many runs of a day are computed at once: for all automations, and for one."""
TIMES = ("at", "every", "cron")
SETTABLE = settable(Automation, Times) | {"enabled"}
CHANGEABLE = changeable(Automation, Times)
CLEARABLE = clearable(Automation, Times)
"""What a patch may set to nothing."""


class Automations:
    """Service: agents that work while nobody watches."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tasks: Tasks,
        terms: Callable[[str], Awaitable[AgentTerms]],
        check_route: Callable[[str], str],
        default_route: str | None = None,
        submitter: str | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._terms = terms
        self._check_route = check_route
        self._default_route = default_route
        self._submitter = submitter

    async def create(self, prompt: str, *, actor: AnyActor = None, **wish: Any) -> Automation:
        """Make one. Exactly one of `at`, `every` and `cron` says when; see `Automation` for the rest. Moments are
        numbers, or words in the given zone."""
        now, creator = self._clock.now(), actor_name(actor)
        wish = await self._tasks.authorization.restrict(actor, wish, AUTOMATION_FIELDS)
        wish = _read({name: value for name, value in wish.items() if value is not None}, now, host_zone())
        times = Schedule.make(
            at=wish.pop("at", None), every=wish.pop("every", None), cron=wish.pop("cron", None),
            zone=wish.pop("zone", None) or host_zone(), anchor=now,
        )  # fmt: skip
        if times.at is not None and times.at <= now:
            raise InvalidInput("that time has passed already; choose a later one.", field="at")
        agent = await self._tasks.known_agent(wish.pop("agent", None))
        route = wish.pop("route", None) or self._default_route
        session = wish.pop("session_key", None)
        refuse_unknown(wish, SETTABLE)
        enabled = wish.pop("enabled", True)
        automation_id = new_id("am", now)
        first = wish.pop("next_run_at", None) or next_run_at(times, now)
        scope = wish.pop("scope_id", None) or creator or "owner"
        draft = Automation(
            id=automation_id, prompt=prompt, agent=agent, schedule=times.snapshot(), creator=creator, scope_id=scope,
            route=self._check_route(route) if route else None, session_key=check_key(session) if session else "",
            status="active" if enabled else "paused", created_at=now, updated_at=now, next_run_at=first, **wish,
        )  # fmt: skip
        made = normalise(draft)
        self._check(made)
        created = AutomationCreated(
            automation_id=made.id, title=made.name, schedule=made.schedule, next_run_at=made.snapshot()["next_run_at"]
        )
        told = (event_about(made, created, now, creator),)
        await self._store.apply(Changes(records=(made,), sessions=await self._continued(made, now), events=told))
        return made

    async def get(self, automation_id: str) -> Automation:
        """The automation, deleted ones too, or NotFound."""
        found = await self._store.get_automation(automation_id.strip())
        if found is None:
            raise NotFound("automation", automation_id)
        return found

    async def running(self, automation_id: str) -> Task | None:
        """Its open run, or None."""
        return await self._store.find_open_run(automation_id)

    async def history(self, automation_id: str, limit: int = LISTED) -> list[Task]:
        """Its runs, newest first."""
        await self.get(automation_id)
        return await self._store.list_runs(automation_id, _page(limit))

    async def describe(self, automation: Automation) -> dict[str, Any]:
        """Return the automation as JSON, with whether it runs and when it will."""
        after = automation.next_run_at
        times = [] if after is None else upcoming(automation.times, after - 1, NEXT_RUNS)
        return {
            **automation.snapshot(),
            "running": await self.running(automation.id) is not None,
            "next_runs": [local_iso(at, automation.times.zone) for at in times],
        }

    def preview(
        self, *, at: str | None = None, every: Any = None, cron: str | None = None, zone: str | None = None, count: int
    ) -> dict[str, Any]:
        """Return when a schedule would run; nothing is made. An interval counts from now."""
        now = self._clock.now() // SECOND * SECOND
        zone = find_zone(zone or host_zone()).key
        once = None if at is None else parse_moment(at, now, zone)
        times = Schedule.make(zone=zone, at=once, every=every, cron=cron, anchor=now)
        runs = [local_iso(run, zone) for run in upcoming(times, now, count)]
        return {"when": times.describe(), "next_runs": runs}

    async def day(self, ids: Sequence[str] = (), status: str = "", limit: int = LISTED) -> list[dict[str, Any]]:
        """Return what automations do in the next 24 hours, and their newest runs: these, or those of a status."""
        found = [await self.get(key) for key in ids] or await self.list(status, limit=limit)
        most = min(DAY_RUNS_OF_ONE, max(NEXT_RUNS, DAY_RUNS // max(1, len(found))))
        return [await self._day_of(automation, most) for automation in found]

    async def _day_of(self, automation: Automation, most: int) -> dict[str, Any]:
        runs = [task.run_snapshot() for task in await self.history(automation.id, LAST_RUNS)]
        day: dict[str, Any] = {"id": automation.id, "when": "", "next_runs": [], "runs": runs}
        try:
            times = automation.times
        except InvalidInput as problem:  # what is stored cannot be read here, and that is what to say
            return {**day, "when": str(problem)}
        day["when"] = times.describe()
        if automation.next_run_at is not None:
            until = self._clock.now() + DAY
            ahead = (automation.next_run_at, *upcoming(times, automation.next_run_at, most - 1))
            day["next_runs"] = [iso(at) for at in ahead if at <= until]
        return day

    async def patch(
        self, automation_id: str, values: Mapping[str, Any], *, revision: int | None = None, actor: AnyActor = None
    ) -> Automation:
        """Change some fields. Conflict when `revision` is not the current one. What it had to make up for stays unless
        its schedule changes; one that has had all its runs by then is paused."""
        zone = (await self.get(automation_id)).snapshot()["zone"]
        values = _read(values, self._clock.now(), zone)
        refuse_unknown(values, CHANGEABLE)
        if empty := [name for name, value in values.items() if value is None and name not in CLEARABLE]:
            raise InvalidInput(f"{empty[0]} cannot be nothing; leave it out, or say what it should be.", field=empty[0])
        if "agent" in values:
            values = {**values, "agent": await self._tasks.known_agent(values["agent"])}

        def change(found: Automation, now: int) -> Changes:
            if found.status == "deleted":
                raise _gone(found)
            if values.get("manage_mode", found.manage_mode) != found.manage_mode:
                check_manager(actor, found.creator, "creator_only")
            after = self._patched(found, values, now)
            self._check(after)
            changed = {
                f.name: getattr(after, f.name)
                for f in fields(after)
                if getattr(after, f.name) != getattr(found, f.name)
            }
            told = AutomationChanged(automation_id=found.id, fields=tuple(sorted(values)), status=after.status)
            return change_record(found, told, now, actor_name(actor), **changed)

        return await self._change(automation_id, change, actor, revision)

    async def pause(self, automation_id: str, *, why: str = "paused by a person", actor: AnyActor = None) -> Automation:
        """Fire no more. What runs goes on; pausing it again changes nothing."""

        def change(found: Automation, now: int) -> Changes:
            if found.status == "deleted":
                raise _gone(found)
            return Changes() if found.status == "paused" else rules.pause_automation(found, now, why, actor_name(actor))

        return await self._change(automation_id, change, actor)

    async def resume(self, automation_id: str, *, actor: AnyActor = None) -> Automation:
        """Fire again, also after it was deleted. What was missed is not made up for; failures are forgotten."""

        def change(found: Automation, now: int) -> Changes:
            return Changes() if found.status == "active" else rules.resume_automation(found, now, actor_name(actor))

        return await self._change(automation_id, change, actor)

    async def delete(self, automation_id: str, *, actor: AnyActor = None) -> Automation:
        """Delete it; its open run is cancelled with it. It can be brought back for 30 days."""
        name = actor_name(actor)
        for _ in range(TRIES):
            found = await self._get_managed(automation_id, actor)
            if found.status == "deleted":
                return found
            now, run = self._clock.now(), await self._store.find_open_run(found.id)
            delegate = run if run and run.cause == "handoff" else None
            ended, halt = stop_task(run, now, name) if run and not delegate else (None, Changes())
            with suppress(Conflict):
                await self._store.apply(rules.delete_automation(found, now, ended, name).plus(halt))
                if delegate is not None:
                    await self._tasks.cancel(delegate.id, actor=name)
                return await self.get(automation_id)
        raise Conflict(f"automation {automation_id} keeps changing; try again.")

    async def run(self, automation_id: str, *, actor: AnyActor = None) -> Task:
        """Run it now, beside its times. It counts like any other run; the caller does not wait for it."""
        for _ in range(TRIES):
            found = await self._get_managed(automation_id, actor)
            if found.status == "deleted":
                raise _gone(found)
            if find_open_run := await self._store.find_open_run(found.id):
                raise Conflict(f"it runs already as task {find_open_run.id}; wait for it or cancel it.")
            if found.spent:
                raise Conflict(f"automation {found.id} has had all its runs; raise max_runs first.")
            session = await self._store.get_session(found.session_key)
            if session is not None and session.status == "closed":
                raise Conflict(f"session {session.key} is closed; open it again by creating it with the same key.")
            terms = await self._terms(found.agent)
            now = self._clock.now()
            task, changes = rules.run_now(found, now, terms, actor=actor_name(actor), submitter=self._submitter)
            with suppress(Conflict):
                await self._store.apply(changes)
                return task
        raise Conflict(f"automation {automation_id} keeps changing; try again.")

    async def record_source_message(self, automation_id: str, message_id: str) -> Automation:
        """Where its answers belong; the first one counts."""
        message = message_id.strip()

        def change(found: Automation, now: int) -> Changes:
            if found.source_message_id or not message:
                return Changes()
            return Changes(updates=(update_record(found, now, source_message_id=message),))

        return await self._change(automation_id, change)

    async def list(
        self, status: str = "", *, scope: tuple[str, str] | None = None, limit: int = LISTED
    ) -> list[Automation]:
        """Newest first: all but deleted ones, those of one status, or `all`."""
        wanted = status.strip().lower()
        if wanted not in ("", "all", *TRANSITIONS):
            raise InvalidInput(f"the status is one of: all, {', '.join(TRANSITIONS)}.", field="status")
        statuses: Iterable[Status] = ("active", "paused")
        if wanted:
            statuses = tuple(TRANSITIONS) if wanted == "all" else (wanted,)  # type: ignore[assignment]  # one of them
        return await self._store.list_automations(scope, tuple(statuses), _page(limit))

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _change(
        self,
        automation_id: str,
        change: Callable[[Automation, int], Changes],
        actor: AnyActor = None,
        revision: int | None = None,
    ) -> Automation:
        for _ in range(TRIES):
            found = await self._get_managed(automation_id, actor)
            if revision is not None and found.revision != revision:
                raise Conflict(
                    f"automation {found.id} changed meanwhile (revision {found.revision}); look at it again."
                )
            changes = change(found, self._clock.now())
            if changes == Changes():
                return found
            try:
                await self._store.apply(changes)
            except Conflict:
                if revision is not None:
                    raise
                continue
            return await self.get(automation_id)
        raise Conflict(f"automation {automation_id} keeps changing; try again.")

    async def _get_managed(self, automation_id: str, actor: AnyActor) -> Automation:
        """Return the automation; Forbidden if the actor may not manage it."""
        found = await self.get(automation_id)
        check_manager(actor, found.creator, found.manage_mode)
        return found

    def _check(self, made: Automation) -> None:
        validate(made)
        wish: Submission = {"workdir": made.workdir, "timeout": made.timeout_seconds, "on_crash": made.on_crash}
        check(made.prompt, wish, 1_000_000)
        if made.worktree:
            check_repository(made.workdir)

    async def _continued(self, made: Automation, now: int) -> tuple[Session, ...]:
        """The conversation it is to go on with, where a thread was named and there is none yet."""
        if made.resume_thread_id is None or made.fresh or await self._store.get_session(made.session_key):
            return ()
        session = Session(
            key=made.session_key, agent=made.agent, gate_key=gate_key(made.session_key), creator=made.creator,
            thread_id=made.resume_thread_id, workdir=made.workdir, created_at=now, updated_at=now,
        )  # fmt: skip
        return (session,)

    def _patched(self, found: Automation, values: Mapping[str, Any], now: int) -> Automation:
        plain = {name: value for name, value in values.items() if name not in (*TIMES, "zone", "next_run_at")}
        if "route" in plain:
            plain["route"] = self._check_route(plain["route"]) if plain["route"] else None
        schedule = self._rescheduled(found, values, now)
        after = normalise(replace(found, **plain, schedule=schedule))
        if after.status != "active":
            return after
        if after.spent:
            return replace(after, status="paused", paused_why=rules.SPENT, next_run_at=None)
        if values.get("next_run_at") is not None:
            return replace(after, next_run_at=values["next_run_at"])
        if schedule != found.schedule or found.next_run_at is None:
            return replace(after, next_run_at=next_run_at(after.times, now))
        return after

    def _rescheduled(self, found: Automation, values: Mapping[str, Any], now: int) -> Mapping[str, Any]:
        """Its schedule with what is said of it changed; the kind stays unless another is named."""
        chosen = {name: values[name] for name in TIMES if values.get(name) is not None}
        if not chosen and values.get("zone") in (None, found.schedule.get("zone")):
            return found.schedule
        try:
            old: Schedule | None = found.times
        except InvalidInput:
            if not chosen:
                raise
            old = None
        if not chosen:
            chosen = {name: getattr(old, name) for name in TIMES if getattr(old, name) is not None}
        zone = values.get("zone") or (old.zone if old else host_zone())
        times = Schedule.make(**chosen, zone=zone, anchor=(old.anchor if old else None) or now)
        if "at" in values and times.at is not None and times.at <= now:
            raise InvalidInput("that time has passed already; choose a later one.", field="at")
        return times.snapshot()


def _page(limit: int) -> int:
    return min(limit, MOST_LISTED) if limit > 0 else LISTED


def _read(values: Mapping[str, Any], now: int, zone: str) -> dict[str, Any]:
    """Return the values under the record's names, and moments in words as numbers; they are in `zone` unless another
    one is given."""
    result = name_as_record(Automation, values)
    for name in ("at", "next_run_at"):
        if isinstance(result.get(name), str):
            result[name] = parse_moment(result[name], now, result.get("zone") or zone)
    return result


def _gone(found: Automation) -> Conflict:
    return Conflict(f"automation {found.id} is deleted; bring it back with `midwatch automation resume`.")


def kept_since(now: int) -> int:
    """Those deleted before this are gone for good."""
    return now - int(KEPT_SECONDS * SECOND)
