"""Automations: prompts that run at scheduled times.

An automation is running if it has an open task. Its steps are in `midwatch.domain.automation_step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypedDict, get_args

from midwatch.base.errors import InvalidInput
from midwatch.base.schedule import Schedule
from midwatch.base.text import cut
from midwatch.base.timetable import MAX_ITEMS, NO_CALENDARS, Calendars, Timetable
from midwatch.domain.budget import Budget
from midwatch.domain.channel import hide_target
from midwatch.domain.fields import AT, Example, Hidden, Input, Show, to_json
from midwatch.domain.notice import check_notices
from midwatch.domain.probe import LONGEST_COMMAND, WHEN_SECONDS, Probe, list_problems
from midwatch.domain.quiet import check_quiet
from midwatch.domain.requests import NOTICES_HELP, OnBudget, OnCrash, check_name, check_tags, refuse_first
from midwatch.domain.rule import Policy
from midwatch.domain.run_env import check_env, show_env
from midwatch.domain.task import Task

Status = Literal["active", "paused", "deleted"]
Hold = Literal["closed", "runs"]
"""What may hold up a due automation: its session is closed; its last run is open or was transferred."""
ManageMode = Literal["creator_only", "scope_all"]
ScopeKind = Literal["user", "chat"]
Missed = Literal["skip", "once", "once_within"]
Overlap = Literal["skip", "queue", "replace"]
"""What happens if a run is due while the last one is open."""

Scope = Annotated[ScopeKind, Input("Whether it belongs to a user or a chat.", once=True)]
ScopeId = Annotated[str, Input("The user or chat. Default: its creator's.", takes=str | None, once=True, longest=500)]
ManagedBy = Annotated[ManageMode, Input("Who may change it, besides owners.")]
NoticeRoute = Annotated[
    str | None,
    Input("Where to send notices: channel or channel:target. Repeatable.", takes=str | list[str] | None, longest=2000),
    Show(hide_target),
]
Notices = Annotated[str | None, Input(NOTICES_HELP, longest=100)]
"""This type and the four types above are types of fields that automations and goals share."""

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    "active": frozenset({"paused", "deleted"}),
    "paused": frozenset({"active", "deleted"}),
    "deleted": frozenset({"active", "paused"}),
}
SPENT, OVER, CLOSED = "it has had all its runs", "its time has passed", "its conversation is closed"
BY_PERSON = "paused by a person"
WINDOW_SECONDS = 12 * 3600.0
MAX_TITLE = 200
MOST_HISTORY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Automation:
    """The record of an automation.

    If `next_run_at` is None, no next run is planned. `approvals` is a `midwatch.domain.rule.Policy` as JSON.
    """

    noun: ClassVar[str] = "automation"

    id: Annotated[str, Example("am_06f2m8yq3kq5r0v9x1w2")]
    prompt: Annotated[str, Input("What the agent should do.", agents=True, example="Brief me for {{date}}")]
    agent: Annotated[
        str,
        Input(
            "Agent to use. Default: the setting default_agent.",
            takes=str | None,
            longest=200,
            agents=True,
            example="demo",
        ),
    ]
    schedule: Annotated[Mapping[str, Any], Example({"cron": "0 9 * * 1-5", "zone": "Europe/Berlin"})]
    triggers: Annotated[
        tuple[Mapping[str, Any], ...],
        Input("What starts a run besides the time: webhook, file, git, after, event.", longest=20),
    ] = ()
    """The definitions of the triggers; see `midwatch.domain.trigger`."""
    title: Annotated[str, Input("Title. Default: the prompt.", longest=1000, agents=True, example="Morning brief")] = ""
    name: Annotated[
        str | None, Input("Unique short name, usable instead of the id.", longest=200, agents=True, example="brief")
    ] = None
    fresh: Annotated[bool, Input("Start each run in a new session.", agents=True)] = False
    scope_kind: Scope = "user"
    scope_id: ScopeId = "owner"
    route: NoticeRoute = None
    notices: Notices = None
    creator: Annotated[str | None, Example("owner")] = None
    manage_mode: ManagedBy = "creator_only"
    session_key: Annotated[
        str,
        Input("Session to run in. Default: a new one.", takes=str | None, once=True, longest=1000),
        Example("auto:am_06f2m8yq3kq5r0v9x1w2"),
    ] = ""
    resume_thread_id: Annotated[
        str | None, Input("The agent's thread that its conversation continues.", once=True, longest=500)
    ] = None
    source_message_id: Annotated[
        str | None, Input("The message that requested it; its results answer this message.", once=True, longest=500)
    ] = None
    status: Status = "active"
    paused_why: str | None = None
    max_runs: Annotated[int, Input("Pause after this many runs; 0 for no limit.", least=0, most=2**31, agents=True)] = 0
    run_count: Annotated[int, Example(3)] = 0
    workdir: Annotated[str | None, Input("Directory to work in.", longest=4096, agents=True)] = None
    worktree: Annotated[bool, Input("Start each run in a new git worktree and session.", agents=True)] = False
    timeout_seconds: Annotated[
        float | None, Input("Time limit: 90s, 10m, 1h30m.", name="timeout", seconds=True, agents=True)
    ] = None
    on_crash: Annotated[OnCrash | None, Input("After a crash: resume, rerun or fail. Default: the agent's.")] = None
    jitter_seconds: Annotated[
        float, Input("Spread the starts over this much time.", name="jitter", seconds=True, agents=True)
    ] = 0.0
    missed: Annotated[Missed, Input("Missed runs: skip them, or run once for all.", agents=True)] = "once_within"
    missed_window: Annotated[float, Input("For once_within: how late it may start.", seconds=True, agents=True)] = (
        WINDOW_SECONDS
    )
    overlap: Annotated[
        Overlap | None,
        Input("A run while one is open: skip, queue or replace. Default: skip; queue for triggers.", agents=True),
    ] = None
    days_off: Annotated[
        tuple[str, ...],
        Input(
            "Days without runs: a date, a range, 12-25, sat, or a calendar of the settings.",
            longest=MAX_ITEMS,
            agents=True,
            example=["sat", "sun"],
        ),
    ] = ()
    quiet_hours: Annotated[
        tuple[str, ...],
        Input(
            "Hours whose runs move to their end: 22:00-07:00.", longest=MAX_ITEMS, agents=True, example=["22:00-07:00"]
        ),
    ] = ()
    quiet: Annotated[
        str | None, Input("Do not deliver an answer that is only this, or fits /pattern/.", longest=200, agents=True)
    ] = None
    budget: Annotated[Mapping[str, Any] | None, Input("What each run may spend: tokens, usd, steps, seconds.")] = None
    on_budget: Annotated[
        OnBudget | None, Input("When the budget is spent: stop, or ask. Default: ask if it has a route.")
    ] = None
    approvals: Annotated[
        Mapping[str, Any] | None, Input("Rules on the use of tools: default, allow, ask, deny, expires.")
    ] = None
    when_command: Annotated[
        str | None,
        Input("Command that runs first; the run is skipped if it exits with 1.", name="when", longest=LONGEST_COMMAND),
    ] = None
    when_timeout: Annotated[float, Input("How long this command may run.", seconds=True)] = WHEN_SECONDS
    env: Annotated[
        Mapping[str, str] | None, Input("Variables for the programs of its runs, by name."), Show(show_env)
    ] = None
    history: Annotated[int, Input("Show the results of this many last runs to the agent.", least=0, most=10)] = 0
    tags: Annotated[tuple[str, ...], Input("Words to find it by.", longest=100, agents=True, example=["daily"])] = ()
    created_at: int = 0
    updated_at: int = 0
    next_run_at: Annotated[
        int | None,
        Input("When it runs next, if not by its schedule.", takes=str | None, longest=100),
        Example("2026-01-05T08:00:00.000000Z"),
    ] = None
    waiting_run_at: int | None = None
    """When the run was due that waits for the end of the open run, or None."""
    last_run_at: int | None = None
    deleted_at: int | None = None
    last_result: Annotated[str | None, Example(f"ok: {AT}")] = None
    consecutive_failures: int = 0
    revision: Annotated[int, Example(6)] = 0
    account_id: Hidden[str | None] = None
    """The account of all its runs, if an agent created it: that of the agent's task."""
    trace_path: Hidden[str | None] = None
    """The path of the task whose agent created it."""
    idempotency_key: Annotated[
        Hidden[str | None],
        Input("Idempotency key: the same key and options create one automation.", once=True, agents=True),
    ] = None
    body_hash: Hidden[str | None] = None
    declared_by: Annotated[str | None, Example(None)] = None
    """The set of the file that declares it; see `midwatch.domain.declaration`."""
    declaration: Hidden[Mapping[str, Any] | None] = None
    """What the file said when it was last applied."""

    @property
    def times(self) -> Schedule:
        """Return the schedule; raise InvalidInput if it cannot be used, for example because its zone is unknown."""
        if not isinstance(self.schedule, Mapping):
            raise InvalidInput("the schedule of the automation cannot be read; set a new schedule.", field="schedule")
        return Schedule.from_data(self.schedule)

    def timetable(self, calendars: Calendars = NO_CALENDARS) -> Timetable:
        """Return the schedule with days off and quiet hours; raise InvalidInput if one of them cannot be used."""
        return Timetable.make(self.times, self.days_off, self.quiet_hours, calendars)

    @property
    def timed(self) -> bool:
        """Return whether the automation has times, and does not wait for triggers alone."""
        unreadable = not isinstance(self.schedule, Mapping)
        return unreadable or any(self.schedule.get(name) is not None for name in ("at", "every", "cron"))

    @property
    def label(self) -> str:
        """Return the title of the automation, its name, or the beginning of its prompt."""
        return self.title or self.name or cut(self.prompt, 50)

    @property
    def probe(self) -> Probe | None:
        """Return the command that decides whether a run begins, or None."""
        return Probe("when", self.when_command, self.when_timeout) if self.when_command else None

    @property
    def exhausted(self) -> bool:
        """Return whether the automation has had all the runs that `max_runs` allows."""
        return 0 < self.max_runs <= self.run_count

    def snapshot(self) -> dict[str, Any]:
        """Return the automation as JSON shows it.

        The target of the route is left out, because it may contain a secret.
        """
        schedule = dict(self.schedule) if isinstance(self.schedule, Mapping) else {}
        return {**to_json(self), "schedule": schedule, "zone": schedule.get("zone", "UTC")}


class Times(TypedDict, total=False):
    """The times of an automation in a request: exactly one of `at`, `every` and `cron`, or none if it has triggers."""

    at: Annotated[str | None, Input("Run once: 2026-03-29T09:00, in 20m, 09:00, fri 09:00.", longest=100, agents=True)]
    every: Annotated[float | None, Input("Interval: 90m, 24h, 7d.", seconds=True, agents=True)]
    cron: Annotated[
        str | None,
        Input("Cron expression, such as '0 9 * * 1-5' or @daily.", longest=200, agents=True, example="0 9 * * 1-5"),
    ]
    zone: Annotated[
        str | None,
        Input("IANA time zone. Default: this machine's.", longest=100, agents=True, example="Europe/Berlin"),
    ]


class AutomationStore(Protocol):
    """Port: automations. They are written as part of a step, with `Changes`."""

    async def get_automation(self, automation_id: str) -> Automation | None:
        """Return the automation, even if it is deleted, or None."""

    async def list_automations(
        self, scope: tuple[str, str] | None = None, statuses: tuple[Status, ...] = (), limit: int = 20,
        tags: tuple[str, ...] = (),
    ) -> list[Automation]:  # fmt: skip
        """Return automations with one of the `statuses` and all of the `tags`, newest first.

        Without `statuses`, return all automations that are not deleted.
        """

    async def find_automation_key(self, creator: str | None, key: str) -> Automation | None:
        """Return the automation that this creator created with this idempotency key, even if it is deleted, or None."""

    async def list_declared_automations(self, declared_by: str) -> list[Automation]:
        """Return the automations that a set declares and that are not deleted."""

    async def find_automations(self, text: str, limit: int = 3) -> list[Automation]:
        """Return automations whose name or title is `text` and that are not deleted; one with this name is first."""

    async def list_due_automations(self, now: int, limit: int = 64) -> list[Automation]:
        """Return active automations whose time has come, earliest first."""

    async def find_held_automations(self, ids: Sequence[str]) -> dict[str, frozenset[Hold]]:
        """Return what may hold up these automations; automations that nothing holds up are left out."""

    async def find_next_automation_at(self) -> int | None:
        """Return when the next automation is due, or None."""

    async def find_open_run(self, automation_id: str) -> Task | None:
        """Return the open task of an automation, or None.

        If the work of its last task was transferred, return the open task that continues this work.
        """

    async def list_runs(self, automation_id: str, limit: int = 20) -> list[Task]:
        """Return the tasks of an automation, newest first."""

    async def list_results(self, automation_id: str, limit: int) -> list[Task]:
        """Return the last ended runs of an automation that have a result or an error, newest first."""

    async def prune_automations(self, before: int) -> int:
        """Remove automations that were deleted before the time `before`, and return how many."""


# -- pure rules ----------------------------------------------------------------------------------------------------


def _clean(items: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.strip() for item in items if item.strip()))


def normalise(automation: Automation) -> Automation:
    """Return the automation in the form in which it is stored.

    Texts have no surrounding blanks. Only a deleted automation has `deleted_at`, and only an active one has
    `next_run_at`.
    """
    return replace(
        automation,
        title=automation.title.strip(),
        name=(automation.name or "").strip() or None,
        prompt=automation.prompt.strip(),
        scope_id=automation.scope_id.strip(),
        session_key=automation.session_key.strip() or f"auto:{automation.id}",
        days_off=_clean(automation.days_off),
        quiet_hours=_clean(automation.quiet_hours),
        notices=check_notices(automation.notices),
        tags=_clean(automation.tags),
        budget=Budget.from_data(automation.budget).data(),
        approvals=Policy.from_data(automation.approvals).data() or None if automation.approvals else None,
        deleted_at=automation.deleted_at if automation.status == "deleted" else None,
        next_run_at=automation.next_run_at if automation.status == "active" else None,
        waiting_run_at=automation.waiting_run_at if automation.status == "active" else None,
    )


def check_scope(record: Any) -> None:
    """Raise InvalidInput if the scope or the `manage_mode` of an automation or a goal is not valid."""
    refuse_first(
        ("scope_kind", record.scope_kind not in get_args(ScopeKind), "`scope_kind` must be user or chat."),
        ("scope_id", not record.scope_id, "`scope_id` is empty; name the user or chat."),
        ("manage_mode", record.manage_mode not in get_args(ManageMode), "it must be creator_only or scope_all."),
    )


def validate(automation: Automation) -> None:
    """Raise InvalidInput if a field of the automation is not valid."""
    check_scope(automation)
    refuse_first(
        ("prompt", not automation.prompt, "the prompt is empty; describe what the agent should do."),
        ("schedule", not (automation.timed or automation.triggers), "set `at`, `every` or `cron`, or add a trigger."),
        ("title", len(automation.title) > MAX_TITLE, f"the title must have at most {MAX_TITLE} characters."),
        ("title", not (automation.title or "x").isprintable(), "the title must be one line of text."),
        check_name(automation.name, "am_"),
        ("status", automation.status not in TRANSITIONS, "`status` must be active, paused or deleted."),
        ("max_runs", automation.max_runs < 0, "`max_runs` must be above 0, or 0 for no limit."),
        ("run_count", automation.run_count < 0, "`run_count` must be 0 or more."),
        ("max_runs", 0 < automation.max_runs < automation.run_count, "`max_runs` is below `run_count`; raise it."),
        ("missed", automation.missed not in get_args(Missed), "`missed` must be skip, once or once_within."),
        ("overlap", automation.overlap not in (None, *get_args(Overlap)), "`overlap` must be skip, queue or replace."),
        ("missed_window", not 0 < automation.missed_window < math.inf, "`missed_window` must be above 0 seconds."),
        ("jitter", not 0 <= automation.jitter_seconds <= 86400, "`jitter` must be from 0 seconds to a day."),
        ("worktree", automation.worktree and not automation.fresh, "`worktree` needs `fresh`; set both."),
        *list_problems("when", automation.when_command, automation.when_timeout),
        ("history", not 0 <= automation.history <= MOST_HISTORY, f"`history` must be from 0 to {MOST_HISTORY}."),
    )
    check_tags(automation.tags)
    check_quiet(automation.quiet)
    check_env(automation.env)


# -- the end of a run ------------------------------------------------------------------------------------------------


# -- changes by people ----------------------------------------------------------------------------------------------
