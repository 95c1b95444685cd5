"""Commands of automations: add, list, show, edit, pause, resume, run, history, rm, preview, export, import."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from midwatch.base.errors import InvalidInput
from midwatch.cli import options as opt
from midwatch.cli import output as out
from midwatch.cli.chains import draw_chain
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk, connect
from midwatch.cli.inputs import default_workdir
from midwatch.cli.parameters import Argument, Option
from midwatch.cli.watch import follow_task

if TYPE_CHECKING:
    from midwatch.wire.automations import AutomationInfo, RunInfo

HEADERS = ("ID", "STATUS", "AGENT", "NEXT", "LAST", "WHEN", "WHAT")
RUN_HEADERS = ("TASK", "SCHEDULED", "STARTED", "TOOK", "OUTCOME", "TOKENS", "RESULT")
IMPORTED = {
    "made": "made",
    "changed": "changed",
    "same": "skipped: it is the same here",
    "deleted": "skipped: it is deleted here; restore it with `midwatch automation resume {id}`",
}

app = Group("Run prompts on a schedule.")


def schedule_fields() -> tuple[type, ...]:
    """Return the record whose fields describe the schedule of an automation."""
    from midwatch.domain.automation import Times

    return (Times,)


def automation_fields() -> tuple[type, ...]:
    """Return the records whose fields a request about an automation may set."""
    from midwatch.domain.automation import Automation

    return *schedule_fields(), Automation


@command(app, options=opt.FieldOptions(automation_fields, workdir=opt.SESSION_WORKDIR))
async def add(
    desk: Desk,
    prompt: opt.Prompt,
    paused: Annotated[bool, Option("--paused", help="Create the automation paused.")] = False,
    **request: Any,
) -> Reply:
    """Create an automation. Exactly one of --cron, --every and --at is required."""
    from midwatch.base.schedule import host_zone

    request = {"zone": host_zone(), **default_workdir(request)}
    if request.get("worktree"):
        request["fresh"] = True
    if paused:
        request["enabled"] = False
    automation = await desk.client.create_automation(prompt, request)
    notice = await desk.warn_without_worker("no run starts yet")
    text = f"{automation['id']} {describe_schedule(automation)}, by {automation['agent']}"
    return Reply(automation, out.join(text, describe_next_runs(automation)), notice)


@command(app, "list")
async def list_automations(
    desk: Desk,
    status: Annotated[
        opt.AutomationStatus | None,
        Option("--status", "-s", help="Default: all except deleted."),
    ] = None,
    limit: opt.ShortLimit = 20,
) -> Reply:
    """List automations, newest first."""
    automations = await desk.client.automations(status or "", limit=limit)
    empty = "No automations. Create one with `midwatch automation add PROMPT --cron '0 9 * * *'`."
    return Reply({"automations": automations}, lambda: out.table(HEADERS, [*map(make_row, automations)], empty))


def make_row(automation: AutomationInfo) -> tuple[object, ...]:
    """Return an automation as a row of a table."""
    return (
        automation["id"],
        "running" if automation["running"] else automation["status"],
        automation["agent"],
        out.format_time(automation["next_run_at"]),
        out.shorten(automation["last_result"], 24),
        out.shorten(describe_schedule(automation), 40),
        out.shorten(automation["title"] or automation["prompt"], 40),
    )


@command(app)
async def show(desk: Desk, automation_id: opt.AutomationId) -> Reply:
    """Show all details of an automation."""
    automation = await desk.client.automation(automation_id)
    hint = f"Resume it: midwatch automation resume {automation['id']}" if automation["status"] != "active" else None
    return Reply(
        automation, lambda: out.join(out.fields(describe_automation(automation)), describe_next_runs(automation), hint)
    )


@command(app, options=opt.FieldOptions(automation_fields, changes=True, zone=opt.NEW_ZONE))
async def edit(automation_id: opt.AutomationId, revision: opt.Revision = None, **changes: Any) -> Reply:
    """Change an automation. Fields without an option stay as they are. An empty text removes a value: --route ''."""
    if not changes:
        raise click.BadParameter("nothing to change; add an option such as --cron or --prompt")
    async with connect() as desk:
        automation = await desk.client.patch_automation(automation_id, changes, revision=revision)
    text = f"{automation['id']} changed: {describe_schedule(automation)}, by {automation['agent']}"
    return Reply(automation, out.join(text, describe_next_runs(automation)))


@command(app)
async def pause(desk: Desk, automation_id: opt.AutomationId) -> Reply:
    """Pause an automation. A running task continues."""
    automation = await desk.client.pause_automation(automation_id)
    resume = f"midwatch automation resume {automation['id']}"
    return Reply(automation, f"{automation['id']} is paused; resume it with `{resume}`")


@command(app)
async def resume(desk: Desk, automation_id: opt.AutomationId) -> Reply:
    """Resume a paused or deleted automation. Runs missed during the pause are skipped."""
    automation = await desk.client.resume_automation(automation_id)
    text = f"{automation['id']} is active: {describe_schedule(automation)}"
    return Reply(automation, out.join(text, describe_next_runs(automation)))


@command(app, "run", work="wait")
async def run_now(
    desk: Desk,
    automation_id: opt.AutomationId,
    wait: Annotated[bool, Option("--wait", "-w", help="Show the run until it ends.")] = False,
    as_json: opt.AsJson = False,
) -> Reply | int:
    """Run an automation now. This run counts toward --max-runs, too."""
    task = await desk.client.run_automation(automation_id)
    if wait:
        return await follow_task(desk, task["id"], as_json)
    notice = await desk.warn_without_worker("nothing runs this task yet")
    return Reply(task, f"{task['id']} submitted to {task['agent']}", notice)


@command(app)
async def history(desk: Desk, automation_id: opt.AutomationId, limit: opt.ShortLimit = 20) -> Reply:
    """List the runs of an automation, newest first."""
    runs = await desk.client.automation_history(automation_id, limit)
    return Reply({"runs": runs}, out.table(RUN_HEADERS, [*map(make_run_row, runs)], "No runs yet."))


@command(app)
async def chain(desk: Desk, automation_id: opt.AutomationId) -> Reply:
    """Show the automations that start after each other, with their last outcomes."""
    nodes = await desk.client.automation_chain(automation_id)
    return Reply({"nodes": nodes}, lambda: "\n".join(draw_chain(nodes, automation_id)))


@command(app)
async def rm(desk: Desk, automation_id: opt.AutomationId) -> Reply:
    """Delete an automation and cancel its running task. `resume` restores it within 30 days."""
    automation = await desk.client.delete_automation(automation_id)
    resume = f"midwatch automation resume {automation['id']}"
    return Reply(automation, f"{automation['id']} is deleted; restore it within 30 days with `{resume}`")


@command(app, options=opt.FieldOptions(schedule_fields))
async def preview(
    after: Annotated[
        str | None, Option("--after", metavar="TIME", help="Show runs after this time. Default: now.")
    ] = None,
    count: Annotated[int, Option("--count", min=1, max=1000, help="Number of runs to show.")] = 5,
    **times: Any,
) -> Reply:
    """Show the next runs of a schedule without creating an automation. Needs no server."""
    from midwatch.base.clock import SECOND, SystemClock
    from midwatch.base.schedule import Schedule, find_zone, host_zone, local_iso, parse_moment, upcoming

    zone = find_zone(times.pop("zone", host_zone())).key
    now = SystemClock().now() // SECOND * SECOND
    begin = parse_moment(after, now, zone) if after is not None else now
    if "at" in times:
        times["at"] = parse_moment(times["at"], begin, zone)
    schedule = Schedule.make(zone=zone, anchor=begin, **times)
    runs = [local_iso(moment, zone) for moment in upcoming(schedule, begin, count)]
    lines = [f"  {moment}" for moment in runs] or [f"  no run after {local_iso(begin, zone)}"]
    return Reply({"next_runs": runs}, out.join(schedule.describe(), *lines))


@command(app)
async def export(
    desk: Desk,
    ids: Annotated[list[str] | None, Argument(metavar="[ID]...", help="Default: all except deleted.")] = None,
) -> Reply:
    """Print automations as JSON, for `midwatch automation import` in this home or another one."""
    content = {"automations": await desk.client.export_automations(ids or ())}
    return Reply(content, json.dumps(content, indent=2))


@command(app, "import")
async def import_file(
    file: Annotated[str, Argument(metavar="FILE", help="File that `export` wrote; - reads standard input.")],
) -> Reply:
    """Create the automations of a file that do not exist, and change those that differ. An error changes nothing."""
    exported = read_export(file)
    async with connect() as desk:
        imported = await desk.client.import_automations(exported)
    lines = [f"{item['id']} {IMPORTED[item['what']].format(id=item['id'])}" for item in imported]
    return Reply({"automations": imported}, "\n".join(lines) or "The file contains no automations.")


def read_export(file: str) -> list[Any]:
    """Read the automations in a file that `midwatch automation export` wrote."""
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        automations = json.loads(text)["automations"]
    except OSError as problem:
        raise InvalidInput(f"{file} cannot be read: {problem.strerror}; check the path.", field="file") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        automations = None
    if not isinstance(automations, list):
        raise InvalidInput(f"{file} is not a file of `midwatch automation export`; choose another file.", field="file")
    return automations


# -- showing automations -----------------------------------------------------------------------------------------------


def describe_next_runs(automation: AutomationInfo) -> str:
    """Return the times of the next runs as lines, in the automation's time zone."""
    if automation["next_runs"]:
        return "\n".join(f"  {moment}" for moment in automation["next_runs"])
    reason = f", {automation['paused_why']}" if automation["paused_why"] else ""
    return f"  no next run: {automation['status']}{reason}"


def describe_schedule(automation: AutomationInfo) -> str:
    """Return the schedule of an automation as one line."""
    from midwatch.base.schedule import Schedule

    return Schedule.from_data(automation["schedule"]).describe()


def describe_automation(automation: AutomationInfo) -> list[out.Field]:
    """Return the details of an automation as names and values, for people."""
    late = f" {out.format_duration(automation['missed_window'])}" if automation["missed"] == "once_within" else ""
    runs, most, jitter = automation["run_count"], automation["max_runs"], automation["jitter_seconds"]
    return [
        ("id", automation["id"]),
        ("status", "running" if automation["running"] else automation["status"]),
        *out.pick(automation, paused="paused_why", title="title", prompt="prompt", agent="agent"),
        ("when", describe_schedule(automation)),
        ("zone", automation["zone"]),
        ("runs", f"{runs} of {most}" if most else runs),
        *out.pick(automation, last_run="last_run_at", last_result="last_result"),
        ("failures", automation["consecutive_failures"] or None),
        ("session", automation["session_key"]),
        ("fresh", "yes" if automation["fresh"] else None),
        *out.pick(automation, "route", "workdir"),
        ("timeout", out.format_duration(automation["timeout_seconds"], "")),
        ("on crash", automation["on_crash"]),
        ("jitter", out.format_duration(jitter) if jitter else None),
        ("missed runs", automation["missed"] + late),
        ("quiet", automation["quiet"]),
        ("budget", out.format_json(automation["budget"]) if automation["budget"] else None),
        ("approvals", out.format_json(automation["approvals"]) if automation["approvals"] else None),
        ("tags", ", ".join(automation["tags"])),
        *out.pick(automation, "creator", managed_by="manage_mode", created="created_at", deleted="deleted_at"),
        ("revision", automation["revision"]),
    ]


def make_run_row(run: RunInfo) -> tuple[object, ...]:
    """Return a run of an automation, or a step of a goal, as a row of a table."""
    used = run["usage"] or {}
    return (
        run["task_id"],
        out.format_time(run["scheduled_for"]),
        out.format_time(run["started_at"]),
        out.format_duration(out.measure(run["started_at"], run["completed_at"])),
        run["outcome"] or run["status"],
        sum(used.get(name) or 0 for name in ("input_tokens", "output_tokens")) or None,
        out.shorten(run["error"] or run["result"], 40),
    )
