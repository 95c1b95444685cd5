"""Commands of goals: set, show, list, edit, step, pause, resume, complete, delay, clear."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import click

from midwatch.base.durations import duration
from midwatch.base.errors import InvalidInput
from midwatch.cli import options as opt
from midwatch.cli.automation import RUN_HEADERS, describe_command, make_run_row
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk, connect
from midwatch.cli.inputs import default_workdir, read_prompt
from midwatch.cli.output import Field, fields, format_duration, format_json, format_time, join, pick, shorten, table
from midwatch.cli.parameters import Argument, Option

if TYPE_CHECKING:
    from midwatch.wire.goals import GoalInfo, SavedGoal

STEPS = 10
LIMITS = (("steps", "step"), ("tokens", "tokens"), ("usd", "usd"), ("seconds", "seconds"))
"""The limits of a goal, and the fields with what it has spent."""
HEADERS = ("ID", "NAME", "STATUS", "AGENT", "STEP", "NEXT", "DEADLINE", "OBJECTIVE")
NOT_PURSUED = "no step starts yet"

app = Group("Let an agent work on an objective, step by step.")


Deadline = Annotated[
    str | None, Option("--deadline", metavar="TIME", help="Deadline: in 48h, tomorrow 09:00, 2026-03-29T09:00.")
]
Zone = Annotated[str | None, Option("--tz", metavar="ZONE", help="Time zone of --deadline. Default: this machine's.")]


def goal_fields() -> tuple[type, ...]:
    """Return the record whose fields a request about a goal may set."""
    from midwatch.domain.goal import Goal

    return (Goal,)


@command(app, "set", options=opt.FieldOptions(goal_fields, workdir=opt.SESSION_WORKDIR))
async def set_goal(
    objective: Annotated[
        str, Argument(metavar="OBJECTIVE", help="What to achieve; - reads standard input.", callback=read_prompt)
    ],
    deadline: Deadline = None,
    tz: Zone = None,
    scope: opt.GoalScope = None,
    **request: Any,
) -> Reply:
    """Set a goal. Its first step starts at once, or when its session begins."""
    request = default_workdir(request) | parse_deadline(deadline, tz) | parse_scope(scope)
    async with connect() as desk:
        goal = await desk.client.create_goal(objective, request)
        notice = await desk.warn_without_worker(NOT_PURSUED)
    return Reply(goal, f"{goal['id']} {describe_progress(goal)}, by {goal['agent']}", list_warnings(goal, notice))


@command(app)
async def show(
    goal_id: opt.OptionalGoalId = None,
    steps: Annotated[int, Option("--steps", min=0, max=200, help="Number of last steps to show.")] = STEPS,
    scope: opt.GoalScope = None,
) -> Reply:
    """Show all details of a goal, and its last steps. With --scope, show the only goal of a scope."""
    if goal_id and scope:
        raise InvalidInput("name a goal or a scope, but not both.", field="scope")
    async with connect() as desk:
        goal = await desk.client.goal_of(scope) if scope else await desk.client.goal(goal_id or find_own_goal())
        last = await desk.client.goal_steps(goal["id"], steps) if steps else []
    rows = [skip_schedule(make_run_row(step)) for step in last]
    text = join(
        fields(describe_goal(goal)),
        f"\n{table(skip_schedule(RUN_HEADERS), rows)}" if rows else None,
        suggest_resume(goal) if goal["status"] == "paused" else None,
    )
    return Reply({**goal, "steps": last}, text)


@command(app, "list")
async def list_goals(
    desk: Desk,
    status: Annotated[opt.GoalStatus | None, Option("--status", "-s", help="Status to list. Default: all.")] = None,
    scope: opt.GoalScope = None,
    limit: opt.ShortLimit = 20,
) -> Reply:
    """List goals, newest first."""
    goals = await desk.client.goals(status or "", scope=scope, limit=limit)
    rows = [
        (
            goal["id"],
            goal["name"] or "-",
            "running" if goal["running"] else goal["status"],
            goal["agent"],
            goal["step"],
            describe_next(goal) or "-",
            format_time(goal["deadline_at"]),
            shorten(goal["objective"], 50),
        )
        for goal in goals
    ]
    return Reply({"goals": goals}, table(HEADERS, rows, "No goals. Set one with `midwatch goal set OBJECTIVE`."))


@command(app, options=opt.FieldOptions(goal_fields, changes=True))
async def edit(
    goal_id: opt.GoalId, deadline: Deadline = None, tz: Zone = None, revision: opt.Revision = None, **changes: Any
) -> Reply:
    """Change the objective, deadline or limits of a goal. A running step is not affected."""
    changes |= parse_deadline(deadline, tz)
    if not changes:
        raise click.BadParameter("nothing to change; add an option such as --deadline or --objective")
    async with connect() as desk:
        goal = await desk.client.edit_goal(goal_id, changes, revision=revision)
    return Reply(goal, f"{goal['id']} changed: {describe_progress(goal)}", list_warnings(goal))


@command(app)
async def step(desk: Desk, goal_id: opt.GoalId) -> Reply:
    """Start the next step of a goal now."""
    goal = await desk.client.step_goal(goal_id)
    return Reply(goal, f"{goal['id']} starts its next step now", await desk.warn_without_worker(NOT_PURSUED))


@command(app)
async def pause(
    desk: Desk,
    goal_id: opt.GoalId,
    stop: Annotated[bool, Option("--stop", help="Stop the running step at once.")] = False,
) -> Reply:
    """Pause a goal. Its running step goes on to its end, unless --stop is given. The deadline stays the same."""
    goal = await desk.client.pause_goal(goal_id, stop=stop)
    ends = f" when its running step has ended; `midwatch goal pause --stop {goal['id']}` stops the step"
    rests = "is paused" + (ends if goal["running"] and not stop else "")
    return Reply(goal, f"{goal['id']} {rests}; resume it with `midwatch goal resume {goal['id']}`")


@command(app)
async def resume(desk: Desk, goal_id: opt.GoalId) -> Reply:
    """Resume a goal and reset its error count."""
    goal = await desk.client.resume_goal(goal_id)
    return Reply(goal, f"{goal['id']} is resumed: {describe_progress(goal)}")


@command(app)
async def complete(
    goal_id: opt.OptionalGoalId = None,
    evidence: Annotated[str, Option("--evidence", help="Proof of completion; required from an agent.")] = "",
) -> Reply:
    """Mark a goal as complete. If its agent does this, the step must also end, and the verifier must agree."""
    goal_id = goal_id or find_own_goal()
    async with connect() as desk:
        goal = await desk.client.complete_goal(goal_id, evidence)
    if goal["status"] == "complete":
        return Reply(goal, f"{goal['id']} is complete")
    checker = goal["verifier"] or goal["judge"]
    agrees = f" and {checker} agrees" if checker else ""
    agrees = " and its check passes" if goal["check_command"] else agrees
    return Reply(goal, f"{goal['id']} will be complete when this step has ended{agrees}")


@command(app)
async def delay(
    words: Annotated[
        list[str],
        Argument(metavar="[ID] DURATION REASON", help=f"0, or 1m to 12h, and the reason. Default ID: ${opt.OWN_GOAL}."),
    ],
) -> Reply:
    """Delay the next step of a goal by 1 minute to 12 hours, or by 0: no delay."""
    if len(words) not in (2, 3):
        raise InvalidInput('add how long and why: midwatch goal delay [ID] 30m "waits for the build".', field="delay")
    goal_id = words[0] if len(words) == 3 else find_own_goal()
    duration, reason = words[-2:]
    async with connect() as desk:
        goal = await desk.client.delay_goal(goal_id, duration, reason)
    until = f"waits until {format_time(goal['next_run_at'])}" if goal["next_run_at"] else "does not wait"
    return Reply(goal, f"{goal['id']} {until}")


@command(app)
async def clear(desk: Desk, goal_id: opt.GoalId) -> Reply:
    """Stop and remove a goal, and the work that its steps have submitted. The goal cannot be restored."""
    goal = await desk.client.clear_goal(goal_id)
    return Reply(goal, f"{goal['id']} is removed")


# -- arguments ---------------------------------------------------------------------------------------------------------


def find_own_goal() -> str:
    """Return the id of the goal of the agent that runs this command. Raise InvalidInput if there is none."""
    if goal_id := os.environ.get(opt.OWN_GOAL):
        return goal_id
    raise InvalidInput("the id of the goal is missing; `midwatch goal list` shows the ids.", field="id")


def parse_deadline(text: str | None, zone: str | None) -> dict[str, str]:
    """Return the field `deadline` of a request. It has a UTC offset, so the server's time zone does not matter."""
    if text is None:
        return {}
    from midwatch.base.clock import SystemClock
    from midwatch.base.schedule import find_zone, host_zone, local_iso, parse_moment

    zone_key = find_zone(zone if zone is not None else host_zone()).key
    return {"deadline": local_iso(parse_moment(text, SystemClock().now(), zone_key), zone_key)}


def parse_scope(scope: str | None) -> dict[str, str]:
    """Return the fields of a request that name a scope."""
    if scope is None:
        return {}
    from midwatch.domain.goal import parse_scope as split_scope

    return dict(zip(("scope_kind", "scope_id"), split_scope(scope), strict=True))


# -- showing goals -----------------------------------------------------------------------------------------------------


def describe_progress(goal: GoalInfo) -> str:
    """Return the status and the deadline of a goal as one line."""
    words = {"waiting_for_session": "waits for its session to begin"}
    coming = f"; next step {step}" if (step := describe_next(goal)) else ""
    return f"{words.get(goal['status'], goal['status'])}{coming}, until {format_time(goal['deadline_at'])}"


def describe_next(goal: GoalInfo) -> str:
    """Return when and why later the next step of a goal starts, such as "in 40s: its steps are short"; else nothing."""
    if goal["status"] != "active" or goal["running"] or not goal["next_run_at"]:
        return f"every {duration(goal['every_seconds'])}" if goal["every_seconds"] else ""
    left = (datetime.fromisoformat(goal["next_run_at"]) - datetime.now(UTC)).total_seconds()
    return f"in {duration(left)}" + (f": {shorten(goal['delay_reason'], 40)}" if goal["delay_reason"] else "")


def list_warnings(goal: SavedGoal, notice: str | None = None) -> str | None:
    """Return the warnings about a goal and the notice as lines, or None."""
    return "\n".join([*(f"Warning: {warning}" for warning in goal["warnings"]), *([notice] if notice else [])]) or None


def skip_schedule(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row of a table without the second column, the scheduled time: steps have none."""
    return row[0], *row[2:]


def suggest_resume(goal: GoalInfo) -> str:
    """Return the commands with which a paused goal goes on."""
    resume = f"Resume it: midwatch goal resume {goal['id']}"
    for limit, spent in LIMITS:
        if 0 < goal[f"max_{limit}"] <= (goal[spent] or 0):
            option = "time" if limit == "seconds" else limit
            return f"Raise it: midwatch goal edit {goal['id']} --max-{option} MORE\n{resume}"
    return resume


def describe_check(check: dict[str, Any] | None) -> str | None:
    """Return how the last check of a goal ended, with the last line of its output."""
    if check is None:
        return None
    status = check["exit_status"]
    how = check["problem"] if status is None else f"exit status {status}"
    last = check["output"].rstrip().rpartition("\n")[2]
    return f"{how}: {shorten(last, 100)}" if last else how


def describe_goal(goal: GoalInfo) -> list[Field]:
    """Return the details of a goal as names and values, for people."""

    def of(spent: object, most: object, limit: object) -> object:
        return f"{spent} of {most}" if limit else spent

    limit = goal["max_seconds"]
    usd = "unknown" if goal["usd"] is None else f"${goal['usd']:.2f}"
    cost = of(usd, f"${goal['max_usd']:.2f}", goal["max_usd"])
    return [
        ("id", goal["id"]),
        ("status", "running" if goal["running"] else goal["status"]),
        *pick(goal, "name", paused="paused_why", objective="objective", agent="agent"),
        *pick(goal, "verifier", "judge", deadline="deadline_at"),
        ("next step", describe_next(goal) or None),
        ("every", format_duration(goal["every_seconds"]) if goal["every_seconds"] else None),
        *describe_command("check", goal["check_command"], goal["check_timeout"]),
        ("last check", describe_check(goal["last_check"])),
        ("steps", of(goal["step"], goal["max_steps"], goal["max_steps"])),
        ("tokens", of(goal["tokens"], goal["max_tokens"], goal["max_tokens"])),
        ("cost", cost if goal["tokens"] or goal["max_usd"] else None),
        ("worked", of(format_duration(goal["seconds"]), format_duration(limit), limit)),
        ("errors", goal["errors"] or None),
        ("approvals", format_json(goal["approvals"]) if goal["approvals"] else None),
        *pick(goal, "evidence", "missing", "summary", session="session_key", route="route", notices="notices"),
        *pick(goal, "workdir"),
        ("scope", f"{goal['scope_kind']}:{goal['scope_id']}"),
        *pick(goal, "creator", managed_by="manage_mode", created="created_at", completed="completed_at"),
        ("revision", goal["revision"]),
    ]
