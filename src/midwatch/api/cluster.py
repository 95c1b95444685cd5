"""Routes of processes: who runs tasks on this store."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter

from midwatch import wire
from midwatch.api.desk import Desk, Who
from midwatch.api.reply import Json
from midwatch.engine import Instance
from midwatch.runtime import Runtime

router = APIRouter()


@router.get("/cluster", responses={200: {"model": wire.ClusterInfo}})
async def cluster(desk: Desk, who: Who) -> Json:
    """The processes that made themselves known, oldest first, and facts about the store; its place only for owners."""
    store = await desk.store.describe()
    if who.role != "owner":
        store.pop("path", None)
    return Json({"store": store, "processes": await processes(desk)})


async def processes(desk: Runtime) -> list[dict[str, Any]]:
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


async def _by_database(desk: Runtime) -> tuple[dict[str, float], str | None]:
    """The age of every heartbeat, and who leads."""
    from midwatch.stores.cluster import seen

    store: Any = desk.store
    found = await seen(store)
    leader = next((name for name, one in found.items() if one.leads), None)
    return {name: round(one.heartbeat_age, 3) for name, one in found.items()}, leader


def _by_lock(desk: Runtime, living: list[Instance]) -> str | None:
    """Who leads: the server, or else who holds the lock. It does not tell who that is, unless one lives alone."""
    servers = [one.id for one in living if one.role == "up"]
    if servers:
        return servers[0]
    return living[0].id if len(living) == 1 and desk.home.lock("leader").taken() else None
