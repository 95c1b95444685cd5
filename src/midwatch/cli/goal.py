"""Commands of goals: set, show, list, edit, step, pause, resume, complete, delay, clear."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from midwatch.base.errors import InvalidInput
from midwatch.cli.automation import Manage, OwnWorkdir, ran
from midwatch.cli.connection import connect, run
from midwatch.cli.options import AgentName, AsJson, Route, SessionKey
from midwatch.cli.output import emit, fields, line, local, note, say, span, table

if TYPE_CHECKING:
    from midwatch.wire.goals import GoalInfo

Status = Literal["waiting_for_session", "active", "paused", "complete", "timeout", "all"]
OWN = "MIDWATCH_GOAL"
"""In the environment of an agent: the goal it works on."""
STEPS = 10

GoalId = Annotated[str, typer.Argument(metavar="ID", help="Id of the goal.")]
OwnGoal = Annotated[
    str | None, typer.Argument(metavar="[ID]", help=f"Id of the goal. Default: ${OWN}, which an agent has.")
]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="TIME", help="in 48h, tomorrow 09:00, 2026-03-29T09:00.")
]
Zone = Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="Zone of --deadline. Default: this machine's.")]
MaxSteps = Annotated[int | None, typer.Option("--max-steps", min=0, help="Pause after this many; 0 for no limit.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=0, help="Pause after this many; 0 for no limit.")]
MaxUsd = Annotated[float | None, typer.Option("--max-usd", min=0, help="Pause after this much money; 0 for no limit.")]
MaxTime = Annotated[
    str | None, typer.Option("--max-time", metavar="DURATION", help="Pause after this much work: 90m, 24h.")
]

app = typer.Typer(
    help="Objectives that an agent pursues step by step until they are reached.", invoke_without_command=True
)


@app.callback()
def start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


@app.command("set")
def set_goal(
    objective: Annotated[str, typer.Argument(metavar="OBJECTIVE", help="What is to be reached; - reads it.")],
    deadline: Deadline = None,
    tz: Zone = None,
    agent: AgentName = None,
    verifier: Annotated[
        str | None, typer.Option("--verifier", help="Agent that must agree before the goal is complete.")
    ] = None,
    session: SessionKey = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_usd: MaxUsd = None,
    max_time: MaxTime = None,
    workdir: OwnWorkdir = None,
    route: Route = None,
    manage_mode: Manage = None,
    as_json: AsJson = False,
) -> None:
    """Set a goal. Its first step begins at once, or when its session has begun. There is one open goal per scope."""
    from midwatch.cli.automation import wishes
    from midwatch.cli.tasks import prompt_text

    wish = wishes(
        deadline=moment(deadline, tz), agent=agent, verifier=verifier, session_key=session, max_steps=max_steps,
        max_tokens=max_tokens, max_usd=max_usd, max_seconds=max_time, workdir=workdir or (None if session else "."),
        route=route, manage_mode=manage_mode,
    )  # fmt: skip
    text = prompt_text(objective)

    async def act() -> None:
        async with connect() as desk:
            made = await desk.client.create_goal(text, cast("Any", wish))
            told(made, as_json, f"{made['id']} {progress(made)}, by {made['agent']}")
            if not await desk.served():
                note("No server runs, so nobody pursues it yet; start one with `midwatch up`.")

    run(act())


@app.command()
def show(
    goal_id: OwnGoal = None,
    steps: Annotated[int, typer.Option("--steps", min=0, max=200, help="Show this many of its last steps.")] = STEPS,
    as_json: AsJson = False,
) -> None:
    """Show everything about a goal, and its last steps."""
    wanted = goal_id or own()

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.goal(wanted)
            done = await desk.client.goal_steps(wanted, steps) if steps else []
        if as_json:
            emit({**found, "steps": done})
            return
        fields(described(found))
        if done:
            say()
            table(
                ("TASK", "STARTED", "TOOK", "OUTCOME", "TOKENS", "RESULT"), [without_second(ran(one)) for one in done]
            )
        if found["status"] == "paused":
            say(f"Resume it: midwatch goal resume {found['id']}")

    run(act())


@app.command("list")
def list_goals(
    status: Annotated[Status | None, typer.Option("--status", "-s", help="Default: all.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List goals, newest first."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.goals(status or "", limit=limit)
        if as_json:
            emit({"goals": found})
        elif not found:
            say("No goals. Set one with `midwatch goal set OBJECTIVE`.")
        else:
            rows = [
                (
                    one["id"],
                    "running" if one["running"] else one["status"],
                    one["agent"],
                    one["step"],
                    local(one["deadline_at"]),
                    line(one["objective"], 50),
                )
                for one in found
            ]
            table(("ID", "STATUS", "AGENT", "STEP", "DEADLINE", "OBJECTIVE"), rows)

    run(act())


@app.command()
def edit(
    goal_id: GoalId,
    objective: Annotated[str | None, typer.Option("--objective", help="What is to be reached; - reads it.")] = None,
    deadline: Deadline = None,
    tz: Zone = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    max_usd: MaxUsd = None,
    max_time: MaxTime = None,
    route: Route = None,
    manage_mode: Manage = None,
    revision: Annotated[int | None, typer.Option("--revision", help="Only while it is at this revision.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change its objective, deadline or budgets. A step that runs goes on as it began."""
    from midwatch.cli.automation import wishes
    from midwatch.cli.tasks import prompt_text

    wish = wishes(
        deadline=moment(deadline, tz), max_steps=max_steps, max_tokens=max_tokens, max_usd=max_usd,
        max_seconds=max_time, route=route, manage_mode=manage_mode,
    )  # fmt: skip
    text = None if objective is None else prompt_text(objective)
    if not wish and text is None:
        raise typer.BadParameter("say what to change, such as --deadline or --objective")

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.edit_goal(goal_id, cast("Any", wish), objective=text, revision=revision)
        told(found, as_json, f"{found['id']} changed: {progress(found)}")

    run(act())


@app.command()
def step(goal_id: GoalId, as_json: AsJson = False) -> None:
    """Begin the next step now instead of waiting for its time."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.step_goal(goal_id)
            told(found, as_json, f"{found['id']} goes on now")
            if not await desk.served():
                note("No server runs, so nobody pursues it yet; start one with `midwatch up`.")

    run(act())


@app.command()
def pause(goal_id: GoalId, as_json: AsJson = False) -> None:
    """Rest until it is resumed; a running step is stopped. The deadline still counts."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.pause_goal(goal_id)
        told(found, as_json, f"{found['id']} is paused; go on with `midwatch goal resume {found['id']}`")

    run(act())


@app.command()
def resume(goal_id: GoalId, as_json: AsJson = False) -> None:
    """Go on, with earlier errors forgotten."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.resume_goal(goal_id)
        told(found, as_json, f"{found['id']} goes on: {progress(found)}")

    run(act())


@app.command()
def complete(
    goal_id: OwnGoal = None,
    evidence: Annotated[str, typer.Option("--evidence", help="What proves it; an agent must say it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Say that a goal is reached. From its agent it counts when the step has ended and the verifier, if any, agrees."""
    wanted = goal_id or own()

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.complete_goal(wanted, evidence)
        agrees = f" and {found['verifier']} agrees" if found["verifier"] else ""
        claimed = f"{found['id']}: noted; it counts when this step has ended{agrees}"
        told(found, as_json, f"{found['id']} is complete" if found["status"] == "complete" else claimed)

    run(act())


@app.command()
def delay(
    said: Annotated[
        list[str],
        typer.Argument(metavar="[ID] DURATION REASON", help=f"0, or 1m to 12h, and why. The id may be in ${OWN}."),
    ],
    as_json: AsJson = False,
) -> None:
    """Begin the next step later: 0, or 1 minute to 12 hours."""
    if len(said) not in (2, 3):
        raise InvalidInput('say how long and why: midwatch goal delay [ID] 30m "waits for the build".', field="delay")
    wanted = said[0] if len(said) == 3 else own()
    duration, reason = said[-2:]

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.delay_goal(wanted, duration, reason)
        until = f"waits until {local(found['next_run_at'])}" if found["next_run_at"] else "does not wait"
        told(found, as_json, f"{found['id']} {until}")

    run(act())


@app.command()
def clear(goal_id: GoalId, as_json: AsJson = False) -> None:
    """Give a goal up and remove it; a running step is stopped. It cannot be brought back."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.clear_goal(goal_id)
        told(found, as_json, f"{found['id']} is cleared")

    run(act())


# -- words -------------------------------------------------------------------------------------------------------------


def own() -> str:
    """The goal of the agent that calls."""
    if found := os.environ.get(OWN):
        return found
    raise InvalidInput("say which goal; list them with `midwatch goal list`.", field="id")


def moment(said: str | None, zone: str | None) -> str | None:
    """A time that a person wrote, with its offset, so that no other machine's zone matters."""
    if said is None:
        return None
    from midwatch.base.clock import SystemClock
    from midwatch.base.schedule import find_zone, host_zone, local_iso, parse_moment

    place = find_zone(zone if zone is not None else host_zone()).key
    return local_iso(parse_moment(said, SystemClock().now(), place), place)


def told(found: GoalInfo, as_json: bool, text: str) -> None:
    """Say what became of a goal."""
    if as_json:
        emit(found)
    else:
        say(text)


def progress(found: GoalInfo) -> str:
    """Where it stands, on one line."""
    words = {"waiting_for_session": "waits for its session to begin"}
    return f"{words.get(found['status'], found['status'])}, until {local(found['deadline_at'])}"


def without_second(row: tuple[object, ...]) -> tuple[object, ...]:
    """Steps have no time they were planned for."""
    return row[0], *row[2:]


def described(found: GoalInfo) -> list[tuple[str, object]]:
    """A goal as names and values for people."""

    def of(spent: object, most: object, limited: object) -> object:
        return f"{spent} of {most}" if limited else spent

    limit = found["max_seconds"]
    return [
        ("id", found["id"]),
        ("status", "running" if found["running"] else found["status"]),
        ("paused", found["paused_why"]),
        ("objective", found["objective"]),
        ("agent", found["agent"]),
        ("verifier", found["verifier"]),
        ("deadline", local(found["deadline_at"])),
        ("next step", local(found["next_run_at"]) if found["next_run_at"] else None),
        ("waits for", found["delay_reason"]),
        ("steps", of(found["step"], found["max_steps"], found["max_steps"])),
        ("tokens", of(found["tokens"], found["max_tokens"], found["max_tokens"])),
        ("cost", of(f"${found['usd']:.2f}", f"${found['max_usd']:.2f}", found["max_usd"]) if found["usd"] else None),
        ("worked", of(span(found["seconds"]), span(limit), limit)),
        ("errors", found["errors"] or None),
        ("evidence", found["evidence"]),
        ("summary", found["summary"]),
        ("session", found["session_key"]),
        ("route", found["route"]),
        ("workdir", found["workdir"]),
        ("creator", found["creator"]),
        ("managed by", found["manage_mode"]),
        ("created", local(found["created_at"])),
        ("completed", local(found["completed_at"]) if found["completed_at"] else None),
        ("revision", found["revision"]),
    ]
