"""Commands of automations: add, list, show, edit, pause, resume, run, history, rm, preview, export, import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from midwatch.cli.connection import connect, run
from midwatch.cli.options import AgentName, AsJson, BudgetText, OnCrash, Prompt, Route, SessionKey, Timeout
from midwatch.cli.output import emit, fields, line, local, note, say, span, table

if TYPE_CHECKING:
    from midwatch.wire.automations import AutomationInfo, RunInfo

Status = Literal["active", "paused", "deleted", "all"]
Missed = Literal["skip", "once", "once_within"]
ManageMode = Literal["creator_only", "scope_all"]

AutomationId = Annotated[str, typer.Argument(metavar="ID", help="Id of the automation.")]
Cron = Annotated[
    str | None, typer.Option("--cron", metavar="EXPR", help="Five fields, such as '0 9 * * 1-5', or @daily.")
]
Every = Annotated[str | None, typer.Option("--every", metavar="DURATION", help="An interval: 90m, 24h, 7d.")]
At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="Once: 2026-03-29T09:00, in 20m, 09:00, fri 09:00.")
]
Zone = Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="IANA time zone. Default: this machine's.")]
Title = Annotated[str | None, typer.Option("--title", help="What it is called by. Default: its prompt.")]
MaxRuns = Annotated[int | None, typer.Option("--max-runs", min=0, help="Pause it after this many; 0 for no limit.")]
Jitter = Annotated[
    str | None, typer.Option("--jitter", metavar="DURATION", help="Begin up to this much later, spread evenly.")
]
MissedRule = Annotated[
    Missed | None, typer.Option("--missed", help="Runs that were missed: leave them out, or make up for them once.")
]
MissedWindow = Annotated[
    str | None, typer.Option("--missed-window", metavar="DURATION", help="How late once_within still counts.")
]
Quiet = Annotated[
    str | None, typer.Option("--quiet", metavar="TOKEN", help="An answer that is just this is not delivered.")
]
Allowed = Annotated[
    str | None, typer.Option("--approvals", metavar="JSON", help="What its runs may do without asking; see the docs.")
]
OwnWorkdir = Annotated[
    str | None,
    typer.Option("--workdir", help="Where the agent works. Default: as its session, else the current directory."),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="A word to find it by; may be repeated.")]
Manage = Annotated[
    ManageMode | None, typer.Option("--manage-mode", help="Who may change it: its creator and owners, or everybody.")
]

app = typer.Typer(help="Work on a schedule: prompts that an agent is given at their time.", invoke_without_command=True)


@app.callback()
def start(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


@app.command()
def add(
    prompt: Prompt,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Zone = None,
    agent: AgentName = None,
    title: Title = None,
    workdir: OwnWorkdir = None,
    timeout: Timeout = None,
    budget: BudgetText = None,
    route: Route = None,
    max_runs: MaxRuns = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Each run in a conversation of its own.")] = False,
    worktree: Annotated[
        bool, typer.Option("--worktree", help="Each run in a git worktree of its own; it is fresh, too.")
    ] = False,
    jitter: Jitter = None,
    missed: MissedRule = None,
    missed_window: MissedWindow = None,
    quiet: Quiet = None,
    approvals: Allowed = None,
    tag: Tags = None,
    session: SessionKey = None,
    on_crash: OnCrash = None,
    manage_mode: Manage = None,
    paused: Annotated[bool, typer.Option("--paused", help="Make it, and let it wait until it is resumed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an automation: exactly one of --cron, --every and --at says when it runs."""
    from midwatch.base.schedule import host_zone
    from midwatch.cli.tasks import prompt_text

    wish = wishes(
        cron=cron, every=every, at=at, zone=tz if tz is not None else host_zone(), agent=agent, title=title,
        workdir=workdir or (None if session else "."), timeout=timeout, budget=budget, route=route, max_runs=max_runs,
        fresh=fresh or worktree or None, worktree=worktree or None, jitter=jitter, approvals=approvals, missed=missed,
        missed_window=missed_window, quiet=quiet, tags=tag, session_key=session, on_crash=on_crash,
        manage_mode=manage_mode, enabled=False if paused else None,
    )  # fmt: skip
    text = prompt_text(prompt)

    async def act() -> None:
        async with connect() as desk:
            made = await desk.client.create_automation(text, cast("Any", wish))
            told(made, as_json, f"{made['id']} {described_times(made)}, by {made['agent']}", times=True)
            if not await desk.served():
                note("No server runs, so nothing fires yet; start one with `midwatch up`.")

    run(act())


@app.command("list")
def list_automations(
    status: Annotated[Status | None, typer.Option("--status", "-s", help="Default: all but deleted ones.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List automations, newest first."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.automations(status or "", limit=limit)
        if as_json:
            emit({"automations": found})
        elif not found:
            say("No automations. Make one with `midwatch automation add PROMPT --cron '0 9 * * *'`.")
        else:
            rows = [
                (
                    one["id"],
                    "running" if one["running"] else one["status"],
                    one["agent"],
                    local(one["next_run_at"]),
                    line(one["last_result"], 24),
                    line(described_times(one), 40),
                    line(one["title"] or one["prompt"], 40),
                )
                for one in found
            ]
            table(("ID", "STATUS", "AGENT", "NEXT", "LAST", "WHEN", "WHAT"), rows)

    run(act())


@app.command()
def show(automation_id: AutomationId, as_json: AsJson = False) -> None:
    """Show everything about an automation."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.automation(automation_id)
        if as_json:
            emit(found)
            return
        fields(described(found))
        next_times(found)
        if found["status"] != "active":
            say(f"Resume it: midwatch automation resume {found['id']}")

    run(act())


@app.command()
def edit(
    automation_id: AutomationId,
    prompt: Annotated[str | None, typer.Option("--prompt", help="What the agent should do; - reads it.")] = None,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="IANA time zone. Default: its own.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Who does it.")] = None,
    title: Title = None,
    workdir: Annotated[str | None, typer.Option("--workdir", help="Where the agent works.")] = None,
    timeout: Timeout = None,
    budget: BudgetText = None,
    route: Route = None,
    max_runs: MaxRuns = None,
    fresh: Annotated[
        bool | None, typer.Option("--fresh/--no-fresh", help="Each run in a conversation of its own, or not.")
    ] = None,
    worktree: Annotated[
        bool | None, typer.Option("--worktree/--no-worktree", help="Each run in a git worktree of its own, or not.")
    ] = None,
    jitter: Jitter = None,
    missed: MissedRule = None,
    missed_window: MissedWindow = None,
    quiet: Quiet = None,
    approvals: Allowed = None,
    tag: Tags = None,
    on_crash: OnCrash = None,
    manage_mode: Manage = None,
    revision: Annotated[int | None, typer.Option("--revision", help="Only while it is at this revision.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change what is said and nothing else. An empty text takes a value away: --quiet '', --route '', --tag ''."""
    from midwatch.cli.tasks import prompt_text

    wish = wishes(
        cron=cron, every=every, at=at, zone=tz, agent=agent, title=title, workdir=workdir, timeout=timeout,
        budget=budget, route=route, max_runs=max_runs, fresh=fresh, worktree=worktree, jitter=jitter, missed=missed,
        missed_window=missed_window, quiet=quiet, approvals=approvals, tags=tag, on_crash=on_crash,
        manage_mode=manage_mode,
    )  # fmt: skip
    text = None if prompt is None else prompt_text(prompt)
    if not wish and text is None:
        raise typer.BadParameter("say what to change, such as --cron or --prompt")

    async def act() -> None:
        async with connect() as desk:
            made = await desk.client.patch_automation(automation_id, cast("Any", wish), prompt=text, revision=revision)
        told(made, as_json, f"{made['id']} changed: {described_times(made)}, by {made['agent']}", times=True)

    run(act())


@app.command()
def pause(automation_id: AutomationId, as_json: AsJson = False) -> None:
    """Fire no more until it is resumed. What runs goes on."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.pause_automation(automation_id)
        told(found, as_json, f"{found['id']} is paused; go on with `midwatch automation resume {found['id']}`")

    run(act())


@app.command()
def resume(automation_id: AutomationId, as_json: AsJson = False) -> None:
    """Fire again, also after it was deleted. What was missed is not made up for."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.resume_automation(automation_id)
        told(found, as_json, f"{found['id']} is active: {described_times(found)}", times=True)

    run(act())


@app.command("run")
def run_now(
    automation_id: AutomationId,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Show it to its end, and exit 0 only when it is done.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run it now, beside its times. It counts like any other run."""
    from midwatch.cli import tasks
    from midwatch.cli.run import to_its_end

    async def act() -> int:
        async with connect(work=wait) as desk:
            task = await desk.client.run_automation(automation_id)
            if wait:
                return await to_its_end(desk, task["id"], as_json)
            tasks.told(task, as_json, f"{task['id']} submitted to {task['agent']}")
            if not await desk.served():
                note("No server runs, so nothing runs this task yet; start one with `midwatch up`.")
            return 0

    raise typer.Exit(run(act()))


@app.command()
def history(
    automation_id: AutomationId,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="At most this many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List its runs, newest first."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.automation_history(automation_id, limit)
        if as_json:
            emit({"runs": found})
        elif not found:
            say("No runs yet.")
        else:
            table(("TASK", "SCHEDULED", "STARTED", "TOOK", "OUTCOME", "TOKENS", "RESULT"), [ran(one) for one in found])

    run(act())


@app.command()
def rm(automation_id: AutomationId, as_json: AsJson = False) -> None:
    """Delete it; what runs is cancelled. It can be brought back for 30 days."""

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.delete_automation(automation_id)
        told(
            found,
            as_json,
            f"{found['id']} is deleted; for 30 days `midwatch automation resume {found['id']}` brings it back",
        )

    run(act())


@app.command()
def preview(
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    tz: Zone = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="TIME", help="Runs after this time. Default: now.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many runs to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show when a schedule would run. Creates nothing and needs no server."""
    from midwatch.base.clock import SECOND, SystemClock
    from midwatch.base.schedule import Schedule, find_zone, host_zone, local_iso, parse_moment, upcoming

    zone = find_zone(tz if tz is not None else host_zone()).key
    now = SystemClock().now() // SECOND * SECOND
    begin = parse_moment(after, now, zone) if after is not None else now
    once = parse_moment(at, begin, zone) if at is not None else None
    schedule = Schedule.make(zone=zone, at=once, every=every, cron=cron, anchor=begin)
    runs = [local_iso(moment, zone) for moment in upcoming(schedule, begin, count)]
    if as_json:
        emit({"next_runs": runs})
        return
    say(schedule.describe())
    for moment in runs:
        say(f"  {moment}")
    if not runs:
        say(f"  no run after {local_iso(begin, zone)}")


@app.command()
def export(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Which. Default: all not deleted.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write automations as JSON that `import` reads, here or in another home."""
    import json

    async def act() -> None:
        async with connect() as desk:
            found = await desk.client.export_automations(ids or ())
        if as_json:
            emit({"automations": found})
        else:
            say(json.dumps({"automations": found}, indent=2))

    run(act())


@app.command("import")
def take(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `export` wrote; - reads standard input.")],
    as_json: AsJson = False,
) -> None:
    """Make the automations of a file that are not here, and change those that differ. On bad input nothing is done."""
    shots = read_export(file)

    async def act() -> None:
        async with connect() as desk:
            taken = await desk.client.import_automations(shots)
        if as_json:
            emit({"automations": taken})
            return
        for one in taken:
            say(f"{one['id']} {TAKEN[one['what']].format(id=one['id'])}")
        if not taken:
            say("No automations in it.")

    run(act())


TAKEN = {
    "made": "made",
    "changed": "changed",
    "same": "skipped: it is the same already",
    "deleted": "skipped: it is deleted here; bring it back with `midwatch automation resume {id}`",
}


def read_export(file: str) -> list[Any]:
    """The automations in a file that `export` wrote."""
    import json
    import sys
    from pathlib import Path

    from midwatch.base.errors import InvalidInput

    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        found = json.loads(text)["automations"]
    except OSError as problem:
        raise InvalidInput(f"{file} cannot be read: {problem.strerror}.", field="file") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise InvalidInput(f"{file} is not what `midwatch automation export` writes.", field="file")
    return found


def read_policy(text: str) -> dict[str, Any]:
    """What may be done without asking, as JSON."""
    import json

    from midwatch.base.errors import InvalidInput

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidInput('approvals are JSON, such as {"allow": [{"command": "git log *"}]}.', field="approvals")
    return found


# -- words -------------------------------------------------------------------------------------------------------------

EMPTY = {
    "route": None, "quiet": None, "workdir": None, "timeout": None, "on_crash": None, "title": "", "jitter": 0,
    "approvals": None, "budget": None,
}  # fmt: skip
"""What an empty text means for those that can be taken away."""


def wishes(**said: object) -> dict[str, object]:
    """What was said, as the interface takes it."""
    from midwatch.cli.sessions import absolute
    from midwatch.cli.tasks import limits

    wish = {name: value for name, value in said.items() if value is not None}
    for name, nothing in EMPTY.items():
        if wish.get(name) == "":
            wish[name] = nothing
    if wish.get("workdir"):
        wish["workdir"] = absolute(str(wish["workdir"]))
    if wish.get("budget"):
        wish["budget"] = limits(str(wish["budget"]))
    if wish.get("approvals"):
        wish["approvals"] = read_policy(str(wish["approvals"]))
    if isinstance(tags := wish.get("tags"), list):
        wish["tags"] = [tag for tag in tags if tag.strip()]
    return wish


def told(found: AutomationInfo, as_json: bool, text: str, *, times: bool = False) -> None:
    """Say what became of an automation, and with `times` when it runs next."""
    if as_json:
        emit(found)
        return
    say(text)
    if times:
        next_times(found)


def next_times(found: AutomationInfo) -> None:
    """Its next runs, in its own zone."""
    for moment in found["next_runs"]:
        say(f"  {moment}")
    if not found["next_runs"]:
        say(f"  no next run: {found['status']}" + (f", {found['paused_why']}" if found["paused_why"] else ""))


def described_times(found: AutomationInfo) -> str:
    """Its schedule on one line."""
    from midwatch.base.schedule import Schedule

    return Schedule.from_data(found["schedule"]).describe()


def described(found: AutomationInfo) -> list[tuple[str, object]]:
    """An automation as names and values for people."""
    late = f" {span(found['missed_window'])}" if found["missed"] == "once_within" else ""
    return [
        ("id", found["id"]),
        ("status", "running" if found["running"] else found["status"]),
        ("paused", found["paused_why"]),
        ("title", found["title"]),
        ("prompt", found["prompt"]),
        ("agent", found["agent"]),
        ("when", described_times(found)),
        ("zone", found["zone"]),
        ("runs", f"{found['run_count']} of {found['max_runs']}" if found["max_runs"] else found["run_count"]),
        ("last run", local(found["last_run_at"]) if found["last_run_at"] else None),
        ("last result", found["last_result"]),
        ("failures", found["consecutive_failures"] or None),
        ("session", found["session_key"]),
        ("fresh", "yes" if found["fresh"] else None),
        ("route", found["route"]),
        ("workdir", found["workdir"]),
        ("timeout", None if found["timeout_seconds"] is None else span(found["timeout_seconds"])),
        ("on crash", found["on_crash"]),
        ("jitter", span(found["jitter_seconds"]) if found["jitter_seconds"] else None),
        ("missed runs", found["missed"] + late),
        ("quiet", found["quiet"]),
        ("budget", json_text(found["budget"]) if found["budget"] else None),
        ("approvals", json_text(found["approvals"]) if found["approvals"] else None),
        ("tags", ", ".join(found["tags"])),
        ("creator", found["creator"]),
        ("managed by", found["manage_mode"]),
        ("created", local(found["created_at"])),
        ("deleted", local(found["deleted_at"]) if found["deleted_at"] else None),
        ("revision", found["revision"]),
    ]


def ran(one: RunInfo) -> tuple[object, ...]:
    """A run or a step as a row."""
    from datetime import datetime

    took = None
    if one["started_at"] and one["completed_at"]:
        took = (datetime.fromisoformat(one["completed_at"]) - datetime.fromisoformat(one["started_at"])).total_seconds()
    used = one["usage"] or {}
    tokens = sum(used.get(name) or 0 for name in ("input_tokens", "output_tokens")) or None
    return (
        one["task_id"],
        local(one["scheduled_for"]),
        local(one["started_at"]),
        span(took),
        one["outcome"] or one["status"],
        tokens,
        line(one["error"] or one["result"], 40),
    )


def json_text(value: Any) -> str:
    """A value as one line of JSON."""
    import json

    return json.dumps(value, ensure_ascii=False)
