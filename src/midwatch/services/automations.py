"""The automation service: create, read, change, pause, resume, run and delete automations.

The record is `midwatch.domain.automation`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from midwatch.base.clock import SECOND, Clock, iso
from midwatch.base.errors import Conflict, InvalidInput
from midwatch.base.ids import new_id
from midwatch.base.schedule import Schedule, find_zone, host_zone, local_iso, next_run_at, parse_moment
from midwatch.base.timetable import NO_CALENDARS, Calendars, Timetable
from midwatch.domain import automation as rules
from midwatch.domain import automation_step as steps
from midwatch.domain.agent import AgentTerms
from midwatch.domain.automation import TRANSITIONS, Automation, Status, Times, normalise, validate
from midwatch.domain.changes import Changes, change_record, event_about, update_record
from midwatch.domain.event import AutomationChanged, AutomationCreated
from midwatch.domain.fields import changeable, clearable, name_as_record, settable
from midwatch.domain.identity import AnyActor, actor_name, agent_task
from midwatch.domain.notice import CheckRoute, PlanNotices, keep_policy
from midwatch.domain.requests import MAX_PROMPT, refuse_unknown
from midwatch.domain.run_env import change_env, check_env, hide_env, show_env
from midwatch.domain.session import Session, check_key, gate_key
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.domain.trigger import define, read_secrets, write_triggers
from midwatch.services.authorization import AUTOMATION_FIELDS, Owner, authorize, own_record
from midwatch.services.chain_links import check_links, resolve_links
from midwatch.services.records import ManagedRecords, apply_with_retry, find_first, mark_request, parse_status, require
from midwatch.services.request_checks import check, check_repository, resolve_workdir
from midwatch.services.task_stops import stop_work
from midwatch.services.tasks import Tasks

KEPT_SECONDS = 30 * 86400.0
"""For how many seconds a deleted automation can be restored."""
LISTED, MOST_LISTED = 20, 200
NEXT_RUNS, LAST_RUNS = 5, 10
DAY = 86400 * SECOND
DAY_RUNS, DAY_RUNS_OF_ONE = 3000, 300
"""How many future runs of a day are listed at most: for all automations together, and for each automation."""
TIMES = ("at", "every", "cron")
SETTABLE = settable(Automation, Times) | {"enabled"}
CHANGEABLE = changeable(Automation, Times)
CLEARABLE = clearable(Automation, Times)
"""The fields that a patch may set to null."""


class Automations(ManagedRecords[Automation]):
    """Service: prompts that run on a schedule."""

    noun = "automation"

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tasks: Tasks,
        terms: Callable[[str], Awaitable[AgentTerms]],
        check_route: CheckRoute,
        default_route: str | None = None,
        submitter: str | None = None,
        calendars: Calendars = NO_CALENDARS,
        plan: PlanNotices = keep_policy,
    ) -> None:
        super().__init__(store, clock)
        self._tasks = tasks
        self._terms = terms
        self._check_route = check_route
        self._default_route = default_route
        self._submitter = submitter
        self._calendars = calendars
        self._plan = plan

    async def create(self, prompt: str, *, actor: AnyActor = None, **wish: Any) -> Automation:
        """Create an automation.

        Pass exactly one of `at`, `every` and `cron` as the schedule; see `Automation` for the other fields. A time is a
        number of microseconds, or text that is read in the time zone `zone`. A second call with the same
        `idempotency_key` and the same fields returns the first automation.
        """
        key, creator = wish.get("idempotency_key"), actor_name(actor)
        mark = mark_request(prompt, wish)
        find = partial(self._store.find_automation_key, creator)
        if first := await find_first(find, key, mark, actor):
            return first
        automation, changes = await self.draft(prompt, actor=actor, body_hash=mark, **wish)
        try:
            await self._store.apply(changes)
        except Conflict:
            if first := await find_first(find, key, mark, actor):
                return first
            raise
        return automation

    async def draft(
        self, prompt: str, *, actor: AnyActor = None, body_hash: str | None = None,
        declared: Mapping[str, Any] | None = None, known: Mapping[str, str] | None = None, **wish: Any,
    ) -> tuple[Automation, Changes]:  # fmt: skip
        """Return a new automation, and the changes that create it. Nothing is written.

        `declared` has the fields of the record that only a file which declares it sets. `known` are the ids of the
        automations of this file, by name.
        """
        now, creator = self._clock.now(), actor_name(actor)
        wish = {**wish, "workdir": resolve_workdir(wish.get("workdir"))}
        wish = await self._tasks.authorization.restrict(actor, wish, AUTOMATION_FIELDS)
        parent = agent_task(actor)
        if parent is not None:
            wish["approvals"] = await self._tasks.authorization.inherit_rules(parent)
        check_env(wish.get("env"))
        wish["env"] = change_env(None, wish.get("env"))
        wish = _read_times({name: value for name, value in wish.items() if value is not None}, now, host_zone())
        chosen = {name: wish.pop(name) for name in TIMES if name in wish}
        zone = find_zone(wish.pop("zone", None) or host_zone()).key
        entries = await resolve_links(self._store, wish.get("triggers", ()), actor, known)
        wish["triggers"] = define(entries, now)
        secrets = read_secrets(entries, wish["triggers"])
        timed = chosen or not wish["triggers"]
        times = Schedule.make(zone=zone, anchor=now, **chosen) if timed else Schedule(zone=zone)
        if times.at is not None and times.at <= now:
            raise InvalidInput("the time `at` has passed already; choose a later time.", field="at")
        agent = await self._tasks.check_agent(wish.pop("agent", None))
        route = wish.pop("route", None) or self._default_route
        session = wish.pop("session_key", None)
        refuse_unknown(wish, SETTABLE)
        enabled = wish.pop("enabled", True)
        automation_id = (known or {}).get(str(wish.get("name"))) or new_id("am", now)
        first = wish.pop("next_run_at", None) or next_run_at(times, now)
        scope = wish.pop("scope_id", None) or creator or "owner"
        draft = Automation(
            id=automation_id, prompt=prompt, agent=agent, schedule=times.snapshot(), creator=creator, scope_id=scope,
            route=self._check_route(route) if route else None, session_key=check_key(session) if session else "",
            status="active" if enabled else "paused", created_at=now, updated_at=now, next_run_at=first,
            account_id=parent.account if parent else None,
            trace_path=parent.trace_path or parent.id if parent else None, body_hash=body_hash, **wish,
            **(declared or {}),
        )  # fmt: skip
        automation = normalise(draft)
        self._check(automation)
        self._check_runs(automation, now)
        if declared is None:
            await refuse_taken_name(self._store, automation.id, automation.name)
        changes = create_automation(automation, now, creator, secrets)
        return automation, changes.plus(Changes(sessions=await self._continue_thread(automation, now)))

    async def get(self, automation_id: str, *, actor: AnyActor = None) -> Automation:
        """Return the automation with this id, name or unique title, or raise NotFound.

        An id also finds a deleted automation.
        """
        automation = await find_automation(self._store, automation_id)
        authorize(actor, "read", own_record(automation))
        return automation

    async def open_run(self, automation_id: str) -> Task | None:
        """Return the open run of an automation, or None."""
        return await self._store.find_open_run(automation_id)

    async def history(self, automation_id: str, limit: int = LISTED, *, actor: AnyActor = None) -> list[Task]:
        """Return the runs of an automation, newest first."""
        automation = await self.get(automation_id, actor=actor)
        return await self._store.list_runs(automation.id, _limit_page(limit))

    async def describe(self, automation: Automation, *, actor: AnyActor = None) -> dict[str, Any]:
        """Return the automation as JSON, also with whether it runs now and with the times of its next runs.

        Days off and quiet hours are applied to these times. If the schedule cannot be read here, `problem` says why. An
        agent sees only the names of the variables in `env`.
        """
        env = show_env(automation.env) if agent_task(actor) is None else hide_env(automation.env)
        running = await self.open_run(automation.id) is not None
        shown = {**automation.snapshot(), "env": env, "running": running}
        try:
            timetable = automation.timetable(self._calendars)
        except InvalidInput as problem:
            return {**shown, "next_runs": [], "problem": str(problem)}
        times = timetable.follow(automation.next_run_at, NEXT_RUNS)
        return {
            **shown,
            "next_run_at": iso(times[0]) if times else None,
            "next_runs": [local_iso(at, timetable.schedule.zone) for at in times],
            "problem": None,
        }

    def preview(
        self,
        *,
        at: str | None = None,
        every: Any = None,
        cron: str | None = None,
        zone: str | None = None,
        days_off: Sequence[str] = (),
        quiet_hours: Sequence[str] = (),
        count: int,
    ) -> dict[str, Any]:
        """Return the next `count` runs of a schedule. No automation is created. An interval `every` starts now."""
        now = self._clock.now() // SECOND * SECOND
        zone = find_zone(zone or host_zone()).key
        once = None if at is None else parse_moment(at, now, zone)
        times = Schedule.make(zone=zone, at=once, every=every, cron=cron, anchor=now)
        timetable = Timetable.make(times, days_off, quiet_hours, self._calendars)
        runs = [local_iso(run, zone) for run in timetable.upcoming(now, count)]
        return {"when": times.describe(), "next_runs": runs}

    async def day(
        self, ids: Sequence[str] = (), status: str = "", limit: int = LISTED, *, actor: AnyActor = None
    ) -> list[dict[str, Any]]:
        """Return, for each automation, its last runs and the times of its runs in the next 24 hours.

        These are the automations with these ids. Without ids, they are the automations with this status; see `list`.
        """
        authorize(actor, "oversee")
        automations = [await self.get(key) for key in ids] or await self.list(status, limit=limit)
        most = min(DAY_RUNS_OF_ONE, max(NEXT_RUNS, DAY_RUNS // max(1, len(automations))))
        return [await self._day_of(automation, most) for automation in automations]

    async def _day_of(self, automation: Automation, most: int) -> dict[str, Any]:
        runs = [task.run_snapshot() for task in await self.history(automation.id, LAST_RUNS)]
        day: dict[str, Any] = {"id": automation.id, "when": "", "next_runs": [], "runs": runs}
        try:
            timetable = automation.timetable(self._calendars)
        except InvalidInput as problem:  # the stored schedule cannot be read here; show the error instead
            return {**day, "when": str(problem)}
        day["when"] = timetable.schedule.describe()
        until = self._clock.now() + DAY
        day["next_runs"] = [iso(at) for at in timetable.follow(automation.next_run_at, most) if at <= until]
        return day

    async def patch(
        self, automation_id: str, values: Mapping[str, Any], *, revision: int | None = None, actor: AnyActor = None
    ) -> Automation:
        """Change some fields of an automation. Raise Conflict if `revision` is not its current revision.

        The time of the next run stays unless the schedule changes. A changed interval counts from now, or from its old
        `anchor` if the value `keep_anchor` is True. An automation without remaining runs is paused.
        """
        authorize(actor, "manage")
        keep_anchor = bool(values.get("keep_anchor"))
        values = {name: value for name, value in values.items() if name != "keep_anchor"}
        zone = (await self.get(automation_id)).snapshot()["zone"]
        values = await self.read_patch(values, zone, actor)

        async def change(automation: Automation, now: int) -> Changes:
            if values.get("name", automation.name) != automation.name:
                await refuse_taken_name(self._store, automation.id, (values["name"] or "").strip())
            after, step = self.compute_patch(automation, values, now, actor, keep_anchor=keep_anchor)
            if "triggers" in values:
                await check_links(self._store, {after.id: after.triggers})
            return step

        return await self._change(automation_id, change, actor, revision)

    async def read_patch(self, values: Mapping[str, Any], zone: str, actor: AnyActor) -> dict[str, Any]:
        """Return the checked values of a patch under the names of the record's fields, with times as numbers."""
        values = _read_times(values, self._clock.now(), zone)
        refuse_unknown(values, CHANGEABLE)
        if empty := [name for name, value in values.items() if value is None and name not in CLEARABLE]:
            raise InvalidInput(f"`{empty[0]}` cannot be null; leave it out, or give it a value.", field=empty[0])
        if "agent" in values:
            values = {**values, "agent": await self._tasks.check_agent(values["agent"])}
        if values.get("triggers"):
            values = {**values, "triggers": await resolve_links(self._store, values["triggers"], actor)}
        return values

    def compute_patch(
        self, automation: Automation, values: Mapping[str, Any], now: int, actor: AnyActor,
        declared: Mapping[str, Any] | None = None, keep_anchor: bool = False,
    ) -> tuple[Automation, Changes]:  # fmt: skip
        """Return the automation after a patch with the values of `read_patch`, and the changes that write it.

        `declared` has the fields of the record that only a file which declares it sets.
        """
        _refuse_deleted(automation)
        if values.get("manage_mode", automation.manage_mode) != automation.manage_mode:
            authorize(actor, "manage", Owner(automation.creator))
        after = self._apply_patch(automation, values, now, keep_anchor=keep_anchor)
        after = replace(after, **(declared or {}))
        self._check(after)
        if any(name in values for name in (*TIMES, "zone", "days_off", "quiet_hours")):
            self._check_runs(after, now)
        names = (field.name for field in fields(after))
        changed = {name: getattr(after, name) for name in names if getattr(after, name) != getattr(automation, name)}
        payload = AutomationChanged(automation_id=automation.id, fields=tuple(sorted(values)), status=after.status)
        step = change_record(automation, payload, now, actor_name(actor), **changed)
        secrets = read_secrets(values["triggers"] or (), after.triggers) if "triggers" in values else None
        step = step.plus(write_triggers(automation, after, now, secrets))
        return replace(after, revision=automation.revision + 1), step

    async def pause(
        self, automation_id: str, *, why: str = rules.BY_PERSON, stop: bool = False, actor: AnyActor = None
    ) -> Automation:
        """Pause an automation: no more runs start. An open run continues, or is cancelled with `stop`.

        If the automation is paused already, only its open run can be cancelled.
        """
        name = actor_name(actor)

        async def change(automation: Automation, now: int) -> Changes:
            _refuse_deleted(automation)
            run = await self._store.find_open_run(automation.id) if stop else None
            stopped, end = await stop_work(self._store, run, now, name)
            if automation.status == "paused":
                return steps.count_stopped(automation, stopped, now).plus(end)
            return steps.pause_automation(automation, now, why, name, stopped).plus(end)

        return await self._change(automation_id, change, actor)

    async def resume(self, automation_id: str, *, actor: AnyActor = None) -> Automation:
        """Resume a paused or deleted automation. Missed runs are skipped, and the count of failures is reset."""

        async def change(automation: Automation, now: int) -> Changes:
            if automation.status == "active":
                return Changes()
            if automation.status == "deleted":
                await check_links(self._store, {automation.id: automation.triggers})
                await refuse_taken_name(self._store, automation.id, automation.name)
            return steps.resume_automation(automation, now, actor_name(actor))

        return await self._change(automation_id, change, actor)

    async def delete(self, automation_id: str, *, actor: AnyActor = None) -> Automation:
        """Delete an automation and cancel its open run. For 30 days, `resume` can restore the automation."""
        name = actor_name(actor)

        async def change(automation: Automation, now: int) -> Changes:
            return Changes() if automation.status == "deleted" else await self.compute_removal(automation, now, name)

        return await self._change(automation_id, change, actor)

    async def compute_removal(self, automation: Automation, now: int, name: str | None) -> Changes:
        """Return the changes that delete an automation and cancel its open run."""
        run = await self._store.find_open_run(automation.id)
        stopped, stop = await stop_work(self._store, run, now, name)
        return steps.delete_automation(automation, now, stopped, name).plus(stop)

    async def run(self, automation_id: str, *, actor: AnyActor = None) -> Task:
        """Start a run of an automation now, in addition to its schedule, and return the task of the run at once.

        The run is counted like all other runs, for example for `max_runs`.
        """

        async def compute() -> tuple[Task, Changes]:
            automation = await self._get_managed(automation_id, actor)
            _refuse_deleted(automation)
            if run := await self._store.find_open_run(automation.id):
                raise Conflict(f"automation {automation.id} runs already as task {run.id}; wait for it or cancel it.")
            if automation.exhausted:
                raise Conflict(f"automation {automation.id} has used all its runs; first increase its `max_runs`.")
            session = await self._store.get_session(automation.session_key)
            if session is not None and session.status == "closed":
                raise Conflict(f"session {session.key} is closed; to open it again, create it with the same key.")
            terms, now = await self._terms(automation.agent), self._clock.now()
            automation = replace(automation, notices=self._plan(automation.route, automation.notices))
            return steps.run_now(automation, now, terms, actor=actor_name(actor), submitter=self._submitter)

        return await apply_with_retry(self._store, f"automation {automation_id}", compute)

    async def record_source_message(self, automation_id: str, message_id: str) -> Automation:
        """Record the id of the message that the results of an automation reply to, unless an id is recorded already."""
        message = message_id.strip()

        async def change(automation: Automation, now: int) -> Changes:
            if automation.source_message_id or not message:
                return Changes()
            return Changes(updates=(update_record(automation, now, source_message_id=message),))

        return await self._change(automation_id, change)

    async def list(
        self, status: str = "", *, scope: tuple[str, str] | None = None, limit: int = LISTED,
        tags: Sequence[str] = (), actor: AnyActor = None,
    ) -> list[Automation]:  # fmt: skip
        """Return the automations with this status and all of the tags, newest first.

        With the status `all`, return all automations. Without a status, return all that are not deleted.
        """
        authorize(actor, "oversee")
        chosen = parse_status(status, TRANSITIONS)
        statuses: Iterable[Status] = ("active", "paused")
        if chosen:
            statuses = tuple(TRANSITIONS) if chosen == "all" else (chosen,)  # type: ignore[assignment]  # one of them
        return await self._store.list_automations(scope, tuple(statuses), _limit_page(limit), tuple(tags))

    # -- internal ----------------------------------------------------------------------------------------------------

    def _check(self, automation: Automation) -> None:
        check_automation(automation)
        if automation.worktree:
            check_repository(automation.workdir)

    async def _continue_thread(self, automation: Automation, now: int) -> tuple[Session, ...]:
        """Return the session to create for a new automation that continues a thread, or () if none must be created."""
        key = automation.session_key
        if automation.resume_thread_id is None or automation.fresh or await self._store.get_session(key):
            return ()
        session = Session(
            key=key, agent=automation.agent, gate_key=gate_key(key), creator=automation.creator,
            thread_id=automation.resume_thread_id, workdir=automation.workdir, created_at=now, updated_at=now,
        )  # fmt: skip
        return (session,)

    def _check_runs(self, automation: Automation, now: int) -> None:
        """Raise InvalidInput if the days off leave no run, or if a name of a calendar is not known here."""
        timetable = automation.timetable(self._calendars)
        if automation.next_run_at is not None and not timetable.follow(automation.next_run_at, 1):
            raise InvalidInput("all its runs would be on days off; change the schedule or the days.", field="days_off")

    def _apply_patch(
        self, automation: Automation, values: Mapping[str, Any], now: int, *, keep_anchor: bool = False
    ) -> Automation:
        plain = {name: value for name, value in values.items() if name not in (*TIMES, "zone", "next_run_at")}
        if "triggers" in plain:
            plain["triggers"] = define(plain["triggers"] or (), now, automation.triggers)
        if "route" in plain:
            plain["route"] = self._check_route(plain["route"]) if plain["route"] else None
        if "env" in plain:
            check_env(plain["env"])
            plain["env"] = change_env(automation.env, plain["env"])
        if "workdir" in plain:
            plain["workdir"] = resolve_workdir(plain["workdir"], automation.workdir)
        schedule = self._change_schedule(automation, values, now, keep_anchor=keep_anchor)
        after = normalise(replace(automation, **plain, schedule=schedule))
        if after.status != "active":
            return after
        if after.exhausted:
            return replace(after, status="paused", paused_why=rules.SPENT, next_run_at=None, waiting_run_at=None)
        if values.get("next_run_at") is not None:
            return replace(after, next_run_at=values["next_run_at"])
        if schedule != automation.schedule or automation.next_run_at is None:
            return replace(after, next_run_at=next_run_at(after.times, now))
        return after

    def _change_schedule(
        self, automation: Automation, values: Mapping[str, Any], now: int, *, keep_anchor: bool
    ) -> Mapping[str, Any]:
        """Return the schedule after a patch with these values.

        If the values contain none of `at`, `every` and `cron`, the schedule keeps these, and only its zone may change.
        """
        chosen = {name: values[name] for name in TIMES if values.get(name) is not None}
        if not chosen and values.get("zone") in (None, automation.snapshot()["zone"]):
            return automation.schedule
        try:
            old: Schedule | None = automation.times
        except InvalidInput:
            if not chosen:
                raise
            old = None
        if not chosen:
            chosen = {name: getattr(old, name) for name in TIMES if getattr(old, name) is not None}
        zone = values.get("zone") or (old.zone if old else host_zone())
        times = Schedule.make(**chosen, zone=zone, anchor=now)
        if old is not None and old.anchor is not None and (keep_anchor or times.every == old.every):
            times = replace(times, anchor=old.anchor if times.every is not None else None)
        if "at" in values and times.at is not None and times.at <= now:
            raise InvalidInput("the time `at` has passed already; choose a later time.", field="at")
        return times.snapshot()


def _limit_page(limit: int) -> int:
    return min(limit, MOST_LISTED) if limit > 0 else LISTED


def _read_times(values: Mapping[str, Any], now: int, zone: str) -> dict[str, Any]:
    """Return the values of a request under the names of the record's fields, with times as numbers.

    A time that is a text is read in the `zone` of the values or, if they have none, in `zone`.
    """
    result = name_as_record(Automation, values)
    for name in ("at", "next_run_at"):
        if isinstance(result.get(name), str):
            result[name] = parse_moment(result[name], now, result.get("zone") or zone)
    return result


def _refuse_deleted(automation: Automation) -> None:
    if automation.status == "deleted":
        raise Conflict(f"automation {automation.id} is deleted; restore it with `midwatch automation resume`.")


async def find_automation(store: Store, key: str) -> Automation:
    """Return the automation with this id, name or unique title; raise NotFound, or Conflict for a shared title."""
    key = key.strip()
    if (automation := await store.get_automation(key)) is not None:
        return automation
    matching = await store.find_automations(key) if key else []
    if len(matching) > 1 and matching[0].name != key:
        ids = ", ".join(automation.id for automation in matching)
        raise Conflict(f"several automations have the title {key!r}; use an id instead: {ids}.")
    return require(next(iter(matching), None), "automation", key)


async def refuse_taken_name(store: Store, automation_id: str, name: str | None) -> None:
    """Raise Conflict if another automation, one that is not deleted, has this name."""
    for other in await store.find_automations(name) if name else []:
        if other.id != automation_id and other.name == name:
            raise Conflict(f"automation {other.id} has the name {name!r} already; choose another name, or rename it.")


def create_automation(
    automation: Automation, now: int, actor: str | None, secrets: Mapping[str, str] | None = None
) -> Changes:
    """Return the changes that create an automation. `secrets` are chosen secrets of webhooks, by id."""
    payload = AutomationCreated(
        automation_id=automation.id, title=automation.label, schedule=automation.schedule,
        next_run_at=automation.snapshot()["next_run_at"],
    )  # fmt: skip
    created = Changes(records=(automation,), events=(event_about(automation, payload, now, actor),))
    return created.plus(write_triggers(None, automation, now, secrets))


def check_automation(automation: Automation) -> None:
    """Raise InvalidInput if a field of the automation has an invalid value."""
    validate(automation)
    timeout, on_crash = automation.timeout_seconds, automation.on_crash
    check(automation.prompt, {"workdir": automation.workdir, "timeout": timeout, "on_crash": on_crash}, MAX_PROMPT)


def compute_retention_start(now: int) -> int:
    """Return the time before which deleted automations are removed for good."""
    return now - int(KEPT_SECONDS * SECOND)
