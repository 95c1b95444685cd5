"""Routes of the desk at a glance: what runs, what waits for a person, what failed, what came out, what it cost."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from midwatch.api.bodies import SinceQuery, UsageQuery
from midwatch.api.dependencies import PREFIX, DeskDep
from midwatch.api.reply import Json
from midwatch.api.tasks import listed
from midwatch.base.clock import SECOND, iso
from midwatch.base.schedule import find_zone, host_zone
from midwatch.desk.desk import Desk
from midwatch.domain.event import Event
from midwatch.domain.task import TaskFilter
from midwatch.domain.usage import Asked, grouped, summed
from midwatch.wire.system import Now
from midwatch.wire.usage import UsageInfo

DAY = 24 * 3600 * SECOND
SHOWN = 10
TELLING = ("text", "tool", "question", "wait", "status")
"""Of a payload, what says most about what goes on."""

router = APIRouter(prefix=PREFIX, tags=["now"])


@router.get("/now", responses={200: {"model": Now}})
async def now(desk: DeskDep, asked: Annotated[SinceQuery, Query()]) -> Json:
    """The desk at a glance. `since` is where usage is counted from; failures are those of the last 24 hours."""
    state = await desk.store.state_of_desk()
    done = TaskFilter(statuses=("done",), limit=SHOWN)
    return Json(
        {
            "as_of_seq": state.as_of_seq,
            "summary": state.summary._asdict(),
            "running": [{**listed(task), "activity": activity(last)} for task, last in state.running],
            "approvals": [approval.snapshot() for approval in await desk.approvals.list()],
            "failed": [listed(task) for task in await desk.store.failed_since(desk.clock.now() - DAY, SHOWN)],
            "recent": [listed(task) for task in await desk.tasks.list(done)],
            "usage": await used(desk, UsageQuery(since=asked.since)),
        }
    )


@router.get("/usage", responses={200: {"model": UsageInfo}})
async def usage(desk: DeskDep, asked: Annotated[UsageQuery, Query()]) -> Json:
    """What the tasks that ended in a time have cost, in all and by what is asked for."""
    return Json(await used(desk, asked))


async def used(desk: Desk, asked: UsageQuery) -> dict[str, Any]:
    """Usage as JSON."""
    now = desk.clock.now()
    begins, ends = moment(asked.since, now - DAY), moment(asked.until, now + 1)
    by = tuple(dict.fromkeys(asked.by))
    zone = find_zone(asked.zone or host_zone())
    spent = await desk.store.spent(Asked(since=begins, until=ends, by=by, session_key=asked.session_key))
    rows = grouped(spent, by, zone)
    shown = rows[-asked.limit :] if "day" in by else rows[: asked.limit]
    return {
        "since": iso(begins), "until": iso(ends) if asked.until else None, "by": list(by), "zone": zone.key,
        "total": summed(spent), "rows": shown, "left_off": len(rows) - len(shown),
    }  # fmt: skip


def moment(said: datetime | None, otherwise: int) -> int:
    """A time as the store knows it."""
    return otherwise if said is None else int(said.timestamp() * SECOND)


def activity(last: Event | None) -> dict[str, Any] | None:
    """The last thing that happened to a task, in words."""
    if last is None:
        return None
    said = next((last.payload[name] for name in TELLING if last.payload.get(name)), "")
    return {"at": iso(last.time), "text": f"{last.kind.replace('_', ' ')} {said}".strip()[:200]}
