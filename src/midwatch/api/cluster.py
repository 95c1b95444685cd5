"""Routes of processes: who runs tasks on this store."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter

from midwatch.api.dependencies import PREFIX, DeskDep, Who
from midwatch.api.reply import Json
from midwatch.desk.desk import Desk
from midwatch.desk.shared_database import processes_seen
from midwatch.domain.instance import Instance
from midwatch.wire.system import ClusterInfo

router = APIRouter(prefix=PREFIX, tags=["cluster"])


@router.get("/cluster", responses={200: {"model": ClusterInfo}})
async def cluster(desk: DeskDep, who: Who) -> Json:
    """The processes that made themselves known, oldest first, and facts about the store; its place only for owners."""
    store = await desk.store.describe()
    if who.role != "owner":
        store.pop("path", None)
    return Json({"store": store, "processes": await processes(desk)})


async def processes(desk: Desk) -> list[dict[str, Any]]:
    """Each process as JSON: what it offers, what it runs, and whether it lives and leads."""
    known = await desk.store.list_instances()
    living = {one.id for one in await desk.living()}
    running = Counter(task.lease_owner for task in await desk.store.running_tasks())
    ages, leader = (
        await _by_database(desk)
        if desk.settings.db
        else ({}, _by_lock(desk, [one for one in known if one.id in living]))
    )
    return [
        {
            **one.snapshot(),
            "running": running[one.id],
            "live": one.id in living,
            "heartbeat_age": ages.get(one.id),
            "leader": one.id == leader,
        }
        for one in known
    ]


async def _by_database(desk: Desk) -> tuple[dict[str, float], str | None]:
    """The age of every heartbeat, and who leads."""
    found = await processes_seen(desk)
    leader = next((name for name, one in found.items() if one.leads), None)
    return {name: round(one.heartbeat_age, 3) for name, one in found.items()}, leader


def _by_lock(desk: Desk, living: list[Instance]) -> str | None:
    """Who leads: the server, or else who holds the lock. It does not tell who that is, unless one lives alone."""
    servers = [one.id for one in living if one.role == "up"]
    if servers:
        return servers[0]
    return living[0].id if len(living) == 1 and desk.home.lock("leader").taken() else None
