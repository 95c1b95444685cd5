"""Command `status`: show the number of tasks by status, and what needs a person's attention."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from midwatch.base.errors import MidwatchError
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import Desk
from midwatch.cli.output import join, paint, shorten
from midwatch.cli.parameters import Option

if TYPE_CHECKING:
    from midwatch.wire.tasks import TaskInfo

RECENT = timedelta(days=1)
ITEMS_SHOWN = 5
MAX_PAGES = 4
HEADS = {
    "alerts": ("Alerts (midwatch watchdog ack ID):", "text"),
    "questions": ("Questions (midwatch approve ID or midwatch deny ID):", "question"),
    "failed": ("Failed in the last 24 hours (midwatch retry ID):", "error"),
    "no_agent": ("No running process has the agent of these tasks (midwatch agents):", "agent"),
    "deliveries": ("Notices that could not be sent (midwatch redeliver ID):", "error"),
}
"""The kinds of records that need attention, each with its headline and the field that is printed."""


@command()
async def status(
    desk: Desk,
    check: Annotated[bool, Option("--check", help="Exit with status 1 if something needs attention.")] = False,
) -> Reply:
    """Show the number of tasks by status, and what needs a person's attention."""
    counts = await desk.client.summary()
    try:
        await desk.client.ready()
        problem = None
    except MidwatchError as not_ready:
        problem = str(not_ready)
    has_worker = await desk.has_worker()
    groups, unread = await read_groups(desk)
    attention = await find_attention(desk, has_worker, unread)
    pid = desk.server.pid if desk.server else None
    server = {"pid": pid, "url": desk.client.url} if desk.runtime is None else None
    if server:
        where = f"Server: {server['url']}" + (f" (pid {pid})" if pid else "")
    elif has_worker:
        where = "No server is running here; other processes run tasks (midwatch cluster)."
    else:
        waiting = f" and {counts['pending']} pending tasks wait" if counts["pending"] else ""
        where = paint(f"No server is running{waiting}; start one with `midwatch up`.", "yellow")
    text = join(
        "  ".join(f"{name} {count}" for name, count in counts.items()),
        where,
        paint(f"No tasks are accepted: {problem}", "red") if problem else None,
        *(describe_group(noun, group) for noun, group in groups.items() if any(group.values())),
        *(paint(f"The {noun} cannot be listed: {why}", "red") for noun, why in unread.items()),
        *(describe_attention(attention) if any(attention.values()) or not (problem or unread) else ()),
    )
    data = {**counts, "server": server, "problem": problem, **groups, "unread": unread, "attention": attention}
    needed = problem is not None or bool(unread) or any(attention.values())
    return Reply(data, text, status=int(check and needed))


async def read_groups(desk: Desk) -> tuple[dict[str, dict[str, list[object]]], dict[str, str]]:
    """Return sessions, automations and goals by status, and for each list that cannot be read the reason."""
    client = desk.client
    readers: dict[str, tuple[Callable[[], Awaitable[Any]], str, tuple[str, ...]]] = {
        "sessions": (lambda: client.sessions(limit=500), "key", ("busy", "asking")),  # busy ones were used recently
        "automations": (lambda: client.automations(limit=200), "id", ("active", "paused")),
        "goals": (lambda: client.goals(limit=200), "id", ("active", "waiting_for_session", "paused")),
    }
    groups, unread = dict[str, dict[str, list[object]]](), dict[str, str]()
    for noun, (read, key, statuses) in readers.items():
        try:
            records = await read()
            listed = records["sessions"] if noun == "sessions" else records
        except MidwatchError as why:
            listed, unread[noun] = [], str(why)
        groups[noun] = group_by_status(listed, key, *statuses)
    return groups, unread


async def find_attention(desk: Desk, has_worker: bool, unread: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the records that need a person's attention, by kind. Add to `unread` why alerts cannot be listed."""
    since = (datetime.now(UTC) - RECENT).isoformat()
    failed = (await desk.client.list(status=["failed"], limit=50))["tasks"]
    questions = await desk.client.approvals()
    deliveries = await desk.client.deliveries("failed")
    orphans = [task for task in await list_pending(desk) if task["wait"] == "agent"] if has_worker else []
    try:
        alerts = [dict(alert) for alert in await desk.client.alerts() if alert["status"] != "acknowledged"]
    except MidwatchError as why:
        alerts, unread["alerts"] = [], str(why)
    return {
        "alerts": alerts,
        "failed": [select(t, "id", "prompt", "outcome", "error") for t in failed if (t["completed_at"] or "") > since],
        "questions": [select(approval, "id", "task_id", "question") for approval in questions],
        "deliveries": [select(delivery, "id", "channel", "error") for delivery in deliveries],
        "no_agent": [select(task, "id", "prompt", "agent") for task in orphans],
    }


def group_by_status(records: Sequence[Mapping[str, object]], key: str, *statuses: str) -> dict[str, list[object]]:
    """Return, for each status, the values of the field `key` of the records with this status."""
    return {status: [record[key] for record in records if record["status"] == status] for status in statuses}


async def list_pending(desk: Desk) -> list[TaskInfo]:
    """Return pending tasks, up to a few pages."""
    tasks: list[TaskInfo] = []
    before: str | None = None
    for _ in range(MAX_PAGES):
        page = await desk.client.list(status=["pending"], before=before, limit=500)
        tasks += page["tasks"]
        before = page["next"]
        if before is None:
            break
    return tasks


def select(record: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a record with only these fields."""
    return {name: record[name] for name in names}


def describe_group(noun: str, group: Mapping[str, list[object]]) -> str:
    """Return the number of records with each status as one line."""
    parts = (f"{len(keys)} {status.replace('_', ' ')}" for status, keys in group.items() if keys)
    return f"{noun.capitalize()}: " + ", ".join(parts)


def describe_attention(attention: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the lines about the records that need attention, only a few of each kind."""
    lines: list[str] = []
    for name, (head, why) in HEADS.items():
        items = attention.get(name, [])
        if items:
            lines.append(paint(head, "bold"))
            texts = [(item["id"] or "-", (item[why] or "").replace("\n", ": ", 1)) for item in items[:ITEMS_SHOWN]]
            lines += [f"  {key}  {shorten(text)}" for key, text in texts]
        if len(items) > ITEMS_SHOWN:
            lines.append(f"  ... and {len(items) - ITEMS_SHOWN} more")
    return lines or ["Nothing needs attention."]
