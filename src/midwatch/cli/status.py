"""Command `status`: the counts, and what needs a person's attention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from midwatch.cli.connection import Desk, connect, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, line, paint, say

if TYPE_CHECKING:
    from midwatch.wire.tasks import TaskInfo

RECENT = timedelta(days=1)
SHOWN = 5
PAGES = 4


def status(as_json: AsJson = False) -> None:
    """Show how many tasks there are, and what needs attention."""

    async def act() -> None:
        async with connect() as desk:
            counts = await desk.client.summary()
            served = await desk.served()
            attention = await needs(desk, served)
            talks = await conversations(desk)
            planned = await plans(desk)
        pid = desk.server.pid if desk.server else None
        server = {"pid": pid, "url": desk.client.url} if desk.runtime is None else None
        if as_json:
            emit({**counts, "server": server, "sessions": talks, **planned, "attention": attention})
            return
        say("  ".join(f"{name} {count}" for name, count in counts.items()))
        if server:
            say(f"Server: {server['url']}" + (f" (pid {pid})" if pid else ""))
        elif served:
            say("No server runs here; processes elsewhere take tasks (midwatch cluster).")
        else:
            waiting = f" and {counts['pending']} pending tasks wait" if counts["pending"] else ""
            say(paint(f"No server runs{waiting}; start one with `midwatch up`.", "yellow"))
        if any(talks.values()):
            say("Sessions: " + ", ".join(f"{len(keys)} {name}" for name, keys in talks.items() if keys))
        for noun, found in planned.items():
            if any(found.values()):
                parts = (f"{len(ids)} {name.replace('_', ' ')}" for name, ids in found.items() if ids)
                say(f"{noun.capitalize()}: " + ", ".join(parts))
        for text in told(attention):
            say(text)

    run(act())


async def needs(desk: Desk, served: bool) -> dict[str, list[dict[str, Any]]]:
    """What a person should look at."""
    since = (datetime.now(UTC) - RECENT).isoformat()
    failed = (await desk.client.list(status=["failed"], limit=50))["tasks"]
    questions = await desk.client.approvals()
    deliveries = await desk.client.deliveries("failed")
    orphans = [task for task in await pending(desk) if task["wait"] == "agent"] if served else []
    return {
        "failed": [brief(t, "outcome", "error") for t in failed if (t["completed_at"] or "") > since],
        "questions": [{"id": a["id"], "task_id": a["task_id"], "question": a["question"]} for a in questions],
        "deliveries": [{"id": d["id"], "channel": d["channel"], "error": d["error"]} for d in deliveries],
        "no_agent": [brief(t, "agent") for t in orphans],
    }


async def conversations(desk: Desk) -> dict[str, list[str]]:
    """Sessions in which something goes on, by what: their keys."""
    found = (await desk.client.sessions(limit=500))["sessions"]  # what goes on was used lately
    return {name: [one["key"] for one in found if one["status"] == name] for name in ("busy", "asking")}


async def plans(desk: Desk) -> dict[str, dict[str, list[str]]]:
    """Automations and open goals, by status: their ids."""
    automations, goals = await desk.client.automations(limit=200), await desk.client.goals(limit=200)
    return {
        "automations": {name: [a["id"] for a in automations if a["status"] == name] for name in ("active", "paused")},
        "goals": {
            name: [g["id"] for g in goals if g["status"] == name]
            for name in ("active", "waiting_for_session", "paused")
        },
    }


async def pending(desk: Desk) -> list[TaskInfo]:
    """Pending tasks, within reason."""
    found: list[TaskInfo] = []
    before: str | None = None
    for _ in range(PAGES):
        page = await desk.client.list(status=["pending"], before=before, limit=500)
        found += page["tasks"]
        before = page["next"]
        if before is None:
            break
    return found


def brief(task: TaskInfo, *names: str) -> dict[str, Any]:
    """The part of a task that says why it is listed."""
    return {"id": task["id"], "prompt": task["prompt"], **{name: dict(task)[name] for name in names}}


def told(attention: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The attention list for people, a few lines of each kind."""
    lines: list[str] = []
    heads = {
        "questions": ("Questions (midwatch approve ID | midwatch deny ID):", "question"),
        "failed": ("Failed in the last day (midwatch retry ID):", "error"),
        "no_agent": ("No live process has their agent (midwatch agents):", "agent"),
        "deliveries": ("Notices that could not be sent (midwatch redeliver ID):", "error"),
    }
    for name, (head, why) in heads.items():
        found = attention[name]
        if found:
            lines.append(paint(head, "bold"))
            lines += [f"  {one['id']}  {line(one[why])}" for one in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  ... and {len(found) - SHOWN} more")
    return lines or ["Nothing needs attention."]
