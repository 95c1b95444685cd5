"""Commands of automations: add, list, show, edit, pause, resume, run, history, rm, preview, export, import.

Commands of their triggers: firings, replay, trigger, secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from midwatch.base.errors import InvalidInput
from midwatch.cli import options as opt
from midwatch.cli import output as out
from midwatch.cli.chains import draw_chain
from midwatch.cli.command import Group, Reply, command
from midwatch.cli.connection import Desk, connect
from midwatch.cli.inputs import default_workdir, read_file
from midwatch.cli.parameters import Argument, Option
from midwatch.cli.trigger_flags import Filter, Triggers, Webhook, read_payload, read_triggers
from midwatch.cli.watch import follow_task
from midwatch.cli.watch_flags import After, AfterAny, Git, OnEvent, OnFile, Outcome, read_watches

if TYPE_CHECKING:
    from midwatch.wire.automations import AutomationInfo, RunInfo
    from midwatch.wire.triggers import FiringInfo, TriggerInfo, WebhookInfo

HEADERS = ("ID", "NAME", "STATUS", "AGENT", "NEXT", "LAST", "WHEN", "WHAT")
KINDS = {
    "webhook": "on a delivery", "file": "on changed files", "git": "on a commit", "after": "after other work",
    "event": "on an event",
}  # fmt: skip
FIRING_HEADERS = ("FIRING", "FIRED", "KIND", "WHAT", "STATUS", "TASK", "REASON")
MOST_COMPARED = 200
"""With how many automations the title of a new one is compared."""
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
    triggers: Triggers = None,
    webhook: Webhook = None,
    filters: Filter = None,
    on_file: OnFile = None,
    git: Git = None,
    on_event: OnEvent = None,
    after: After = None,
    after_any: AfterAny = False,
    outcome: Outcome = None,
    **request: Any,
) -> Reply:
    """Create an automation. One of --cron, --every and --at is required, or a trigger."""
    from midwatch.base.schedule import host_zone

    request = {"zone": host_zone(), **default_workdir(request)}
    watches = read_watches(on_file, git, on_event, after, after_any, outcome)
    if defined := read_triggers(triggers, webhook, filters) + watches:
        request["triggers"] = defined
    if request.get("worktree"):
        request["fresh"] = True
    if paused:
        request["enabled"] = False
    automation = await desk.client.create_automation(prompt, request)
    notice = await desk.warn_without_worker("no run starts yet")
    text = f"{automation['id']} {describe_schedule(automation)}, by {automation['agent']}"
    twins = await warn_of_twins(desk, automation)
    webhooks = describe_webhooks(automation.get("webhooks", ()))
    warnings = out.join(notice, twins, warn_of_repositories(automation)) or None
    return Reply(automation, out.join(text, describe_next_runs(automation), webhooks), warnings)


def warn_of_repositories(automation: AutomationInfo) -> str | None:
    """Return a warning if a trigger watches a repository that is not on this machine."""
    paths = [trigger["repository"] for trigger in automation["triggers"] if trigger["kind"] == "git"]
    missing = [path for path in paths if not Path(path).is_dir()]
    if not missing:
        return None
    return f"warning: {missing[0]} does not exist on this machine; the trigger waits until the server finds it"


async def warn_of_twins(desk: Desk, automation: AutomationInfo) -> str | None:
    """Return a warning if other automations have the title of this new one, or its prompt if it has no title."""
    what = get_what(automation)
    others = await desk.client.automations(limit=MOST_COMPARED)
    twins = [other["id"] for other in others if other["id"] != automation["id"] and get_what(other) == what]
    if not twins:
        return None
    remove = f"midwatch automation rm {automation['id']}"
    known = f"{', '.join(twins[:3])} {'has' if len(twins) == 1 else 'have'} the same title"
    return f"warning: {known}; if you did not want two, remove this one: {remove}"


def get_what(automation: AutomationInfo) -> str:
    """Return the title of an automation, or else its prompt."""
    what: str = automation["title"] or automation["prompt"]
    return what


@command(app, "list")
async def list_automations(
    desk: Desk,
    status: Annotated[
        opt.AutomationStatus | None,
        Option("--status", "-s", help="Default: all except deleted."),
    ] = None,
    tag: opt.OfTags = None,
    limit: opt.ShortLimit = 20,
) -> Reply:
    """List automations, newest first."""
    automations = await desk.client.automations(status or "", tag=tag or (), limit=limit)
    empty = "No automations. Create one with `midwatch automation add PROMPT --cron '0 9 * * *'`."
    return Reply({"automations": automations}, lambda: out.table(HEADERS, [*map(make_row, automations)], empty))


def make_row(automation: AutomationInfo) -> tuple[object, ...]:
    """Return an automation as a row of a table."""
    return (
        automation["id"],
        automation["name"] or "-",
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
    triggers = await desk.client.triggers(automation["id"]) if automation["triggers"] else ()
    firings = await desk.client.firings(automation["id"], 20) if automation["triggers"] else ()

    def describe() -> str:
        fields = out.fields([*describe_automation(automation), *describe_firings(firings)])
        return out.join(fields, describe_next_runs(automation), *map(describe_trigger, triggers), hint)

    return Reply({**automation, "trigger_details": triggers, "firings": firings} if triggers else automation, describe)


@command(app, options=opt.FieldOptions(automation_fields, changes=True, zone=opt.NEW_ZONE))
async def edit(
    automation_id: opt.AutomationId,
    revision: opt.Revision = None,
    triggers: Triggers = None,
    webhook: Webhook = None,
    filters: Filter = None,
    on_file: OnFile = None,
    git: Git = None,
    on_event: OnEvent = None,
    after: After = None,
    after_any: AfterAny = False,
    outcome: Outcome = None,
    keep_anchor: Annotated[
        bool, Option("--keep-anchor", help="Count a changed --every from its old start instead of from now.")
    ] = False,
    **changes: Any,
) -> Reply:
    """Change an automation. Fields without an option stay as they are. An empty text removes a value: --route ''.

    --trigger replaces all triggers; the other options of triggers add one.
    """
    added = read_triggers(triggers, webhook, filters)
    added += read_watches(on_file, git, on_event, after, after_any, outcome)
    if not (changes or added or triggers is not None):
        raise click.BadParameter("nothing to change; add an option such as --cron or --prompt")
    if keep_anchor:
        changes["keep_anchor"] = True
    async with connect() as desk:
        if added or triggers is not None:
            kept = (await desk.client.automation(automation_id))["triggers"] if triggers is None else []
            changes["triggers"] = [*kept, *added]
        automation = await desk.client.patch_automation(automation_id, changes, revision=revision)
    text = f"{automation['id']} changed: {describe_schedule(automation)}, by {automation['agent']}"
    return Reply(
        automation, out.join(text, describe_next_runs(automation), describe_webhooks(automation.get("webhooks", ())))
    )


@command(app)
async def pause(
    desk: Desk,
    automation_id: opt.AutomationId,
    stop: Annotated[bool, Option("--stop", help="Cancel the running task, too.")] = False,
) -> Reply:
    """Pause an automation. A running task continues, unless --stop cancels it."""
    automation = await desk.client.pause_automation(automation_id, stop=stop)
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
async def firings(desk: Desk, automation_id: opt.AutomationId, limit: opt.ShortLimit = 20) -> Reply:
    """List how often the triggers of an automation fired, newest first."""
    found = await desk.client.firings(automation_id, limit)
    return Reply({"firings": found}, out.table(FIRING_HEADERS, [*map(make_firing_row, found)], "No firings yet."))


@command(app)
async def replay(desk: Desk, firing_id: Annotated[str, Argument(metavar="FIRING", help="Id of the firing.")]) -> Reply:
    """Fire again with the payload of a firing."""
    firing = await desk.client.replay_firing(firing_id)
    notice = await desk.warn_without_worker("no run starts yet")
    return Reply(firing, f"{firing['id']} repeats {firing_id}: {firing['summary']}", notice)


@command(app)
async def trigger(
    desk: Desk,
    automation_id: opt.AutomationId,
    payload: Annotated[
        str | None, Option("--payload", metavar="FILE", help="JSON to send; - is standard input.")
    ] = None,
    trigger_id: Annotated[str | None, Option("--trigger-id", metavar="ID", help="Default: the first trigger.")] = None,
) -> Reply:
    """Fire a trigger of an automation by hand, as a test. Its filter is not asked."""
    content = None if payload is None else read_payload(read_file(payload))
    firing = await desk.client.test_trigger(automation_id, content, trigger_id=trigger_id)
    notice = await desk.warn_without_worker("no run starts yet")
    return Reply(firing, f"{firing['id']} is {firing['status']}: {firing['summary']}", notice)


@command(app)
async def secret(
    desk: Desk,
    trigger_id: Annotated[str, Argument(metavar="TRIGGER", help="Id of the webhook, as `show` prints it.")],
    rotate: Annotated[bool, Option("--rotate", help="Give it a new secret first; the old one ends at once.")] = False,
) -> Reply:
    """Show the address and the secret of a webhook."""
    webhook = await desk.client.webhook_secret(trigger_id, rotate=rotate)
    return Reply(webhook, describe_webhooks([webhook]) or "")


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
    days_off: Annotated[
        list[str] | None, Option("--day-off", metavar="DAY", help="Day without runs. Repeatable.")
    ] = None,
    quiet_hours: Annotated[
        list[str] | None, Option("--quiet-hours", metavar="HOURS", help="Quiet hours: 22:00-07:00. Repeatable.")
    ] = None,
    **times: Any,
) -> Reply:
    """Show the next runs of a schedule without creating an automation. Needs no server."""
    from midwatch.base.clock import SECOND, SystemClock
    from midwatch.base.schedule import Schedule, find_zone, host_zone, local_iso, parse_moment
    from midwatch.base.timetable import Timetable

    zone = find_zone(times.pop("zone", host_zone())).key
    now = SystemClock().now() // SECOND * SECOND
    begin = parse_moment(after, now, zone) if after is not None else now
    if "at" in times:
        times["at"] = parse_moment(times["at"], begin, zone)
    schedule = Schedule.make(zone=zone, anchor=begin, **times)
    timetable = Timetable.make(schedule, days_off or (), quiet_hours or (), read_calendars(days_off or ()))
    runs = [local_iso(moment, zone) for moment in timetable.upcoming(begin, count)]
    lines = [f"  {moment}" for moment in runs] or [f"  no run after {local_iso(begin, zone)}"]
    return Reply({"next_runs": runs}, out.join(schedule.describe(), *lines))


def read_calendars(days_off: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the calendars of the settings, which are read only if there are days off."""
    if not days_off:
        return {}
    from midwatch.desk.config import Settings

    return Settings.load().list_calendars()


@command(app)
async def export(
    desk: Desk,
    ids: Annotated[list[str] | None, Argument(metavar="[ID]...", help="Default: all except deleted.")] = None,
) -> Reply:
    """Print automations as JSON, for `midwatch automation import` in this home or another one."""
    content = {"automations": await desk.client.export_automations(ids or ())}
    masked = [each["id"] for each in content["automations"] if "***" in (each["env"] or {}).values()]
    notice = f"the secret values of `env` are left out ({', '.join(masked)}); set them again after an import with --env"
    return Reply(content, json.dumps(content, indent=2), notice if masked else None)


@command(app, "import")
async def import_file(
    file: Annotated[
        str | None, Argument(metavar="[FILE]", help="File that `export` wrote; - reads standard input.")
    ] = None,
    crontab: Annotated[
        str | None, Option("--crontab", metavar="FILE", help="Crontab to import instead; - reads standard input.")
    ] = None,
    system: Annotated[bool, Option("--system", help="Its lines name a user, as in /etc/crontab.")] = False,
    enable: Annotated[bool, Option("--enable", help="With --crontab: do not create the automations paused.")] = False,
    skip_bad: Annotated[bool, Option("--skip-bad", help="With --crontab: skip lines that cannot be read.")] = False,
    agent: Annotated[str | None, Option("--agent", "-a", help="With --crontab: agent that runs the commands.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="With --crontab: only print the plan.")] = False,
) -> Reply:
    """Create the automations of a file that do not exist, and change those that differ. An error changes nothing."""
    if (file is None) == (crontab is None):
        raise click.BadParameter("name either a file of `export` or, with --crontab, a crontab")
    if crontab is not None:
        from midwatch.cli.crontab import import_crontab

        given = {"agent": agent} if agent else {}
        return await import_crontab(crontab, given, system=system, enable=enable, skip_bad=skip_bad, dry_run=dry_run)
    assert file is not None
    exported = read_export(file)
    async with connect() as desk:
        imported = await desk.client.import_automations(exported)
    lines = []
    for item in imported:
        lines.append(f"{item['id']} {IMPORTED[item['what']].format(id=item['id'])}")
        lines += [f"  webhook {key} has a new secret: midwatch automation secret {key}" for key in item["new_webhooks"]]
    return Reply({"automations": imported}, "\n".join(lines) or "The file contains no automations.")


def read_export(file: str) -> list[Any]:
    """Read the automations in a file that `midwatch automation export` wrote."""
    text = read_file(file)
    try:
        automations = json.loads(text)["automations"]
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
    if automation["triggers"] and automation["status"] == "active":
        return "  runs when a trigger fires"
    reason = f", {automation['paused_why']}" if automation["paused_why"] else ""
    return f"  no next run: {automation['status']}{reason}"


def describe_schedule(automation: AutomationInfo) -> str:
    """Return the schedule of an automation and the kinds of its triggers as one line, or why it cannot be read."""
    from midwatch.base.schedule import Schedule

    if automation["problem"]:
        return f"problem: {automation['problem']}"
    kinds = [*dict.fromkeys(KINDS.get(entry["kind"], entry["kind"]) for entry in automation["triggers"])]
    timed = any(automation["schedule"].get(name) is not None for name in ("at", "every", "cron"))
    try:
        times = [Schedule.from_data(automation["schedule"]).describe()] if timed or not kinds else []
    except InvalidInput as problem:  # the server knows a zone that this machine does not know
        return f"problem: {problem}"
    return ", ".join([*times, *kinds])


def describe_webhooks(webhooks: Sequence[WebhookInfo]) -> str | None:
    """Return the addresses and secrets of new webhooks as lines."""
    lines = (f"webhook {each['trigger_id']}\n  {each['url']}\n  secret {each['secret']}" for each in webhooks)
    return "\n".join(lines) or None


def describe_trigger(trigger: TriggerInfo) -> str:
    """Return a trigger as lines: when it fires, its address, and what its filter stopped."""
    lines = [f"{trigger['id']} {trigger['text']}"]
    if trigger["url"]:
        lines.append(f"  address: {trigger['url']}")
    if trigger["filtered"]:
        lines.append(
            f"  filtered: {trigger['filtered']}, last {out.format_time(trigger['filtered_at'])}: "
            f"{trigger['filtered_summary']} (not: {trigger['filtered_why']})"
        )
    return "\n".join(lines)


def describe_firings(firings: Sequence[FiringInfo]) -> list[out.Field]:
    """Return the last firing, and the last that was skipped with the reason, as names and values."""
    skipped = next((firing for firing in firings if firing["status"] == "skipped"), None)
    return [
        (name, f"{out.format_time(firing['created_at'])} {firing['summary']}: {firing['reason'] or firing['status']}")
        for name, firing in (("last firing", firings[0] if firings else None), ("last skipped", skipped))
        if firing is not None
    ]


def make_firing_row(firing: FiringInfo) -> tuple[object, ...]:
    """Return a firing as a row of a table."""
    return (
        firing["id"],
        out.format_time(firing["created_at"]),
        firing["kind"],
        out.shorten(firing["summary"], 40),
        firing["status"],
        firing["task_id"],
        out.shorten(firing["reason"], 40),
    )


def describe_automation(automation: AutomationInfo) -> list[out.Field]:
    """Return the details of an automation as names and values, for people."""
    late = f" {out.format_duration(automation['missed_window'])}" if automation["missed"] == "once_within" else ""
    runs, most, jitter = automation["run_count"], automation["max_runs"], automation["jitter_seconds"]
    return [
        ("id", automation["id"]),
        ("status", "running" if automation["running"] else automation["status"]),
        *out.pick(automation, "name", paused="paused_why", title="title", prompt="prompt", agent="agent"),
        ("when", describe_schedule(automation)),
        ("zone", automation["zone"]),
        ("runs", f"{runs} of {most}" if most else runs),
        *out.pick(automation, last_run="last_run_at", last_result="last_result"),
        ("failures", automation["consecutive_failures"] or None),
        ("session", automation["session_key"]),
        ("fresh", "yes" if automation["fresh"] else None),
        *out.pick(automation, "route", "notices", "workdir"),
        ("timeout", out.format_duration(automation["timeout_seconds"], "")),
        ("on crash", automation["on_crash"]),
        ("overlap", automation["overlap"]),
        *out.pick(automation, waiting_run="waiting_run_at"),
        ("days off", ", ".join(automation["days_off"]) or None),
        ("quiet hours", ", ".join(automation["quiet_hours"]) or None),
        ("jitter", out.format_duration(jitter) if jitter else None),
        ("missed runs", automation["missed"] + late),
        *describe_command("runs if", automation["when_command"], automation["when_timeout"]),
        ("env", " ".join(f"{name}={value}" for name, value in (automation["env"] or {}).items()) or None),
        ("history", automation["history"] or None),
        ("quiet", automation["quiet"]),
        ("budget", out.format_json(automation["budget"]) if automation["budget"] else None),
        ("approvals", out.format_json(automation["approvals"]) if automation["approvals"] else None),
        ("tags", ", ".join(automation["tags"])),
        *out.pick(automation, "creator", managed_by="manage_mode", created="created_at", deleted="deleted_at"),
        ("revision", automation["revision"]),
    ]


def describe_command(name: str, command: str | None, seconds: float) -> list[out.Field]:
    """Return the command of an automation or a goal, with its time limit, as names and values for people."""
    return [(name, f"{command} (at most {out.format_duration(seconds)})")] if command else []


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
