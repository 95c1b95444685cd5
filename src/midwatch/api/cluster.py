"""Routes of processes: list the processes that run tasks on this store."""

from __future__ import annotations

from midwatch.api.dependencies import Caller, DeskDep
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json
from midwatch.desk.processes import list_processes
from midwatch.wire.system import ClusterInfo

router = make_router("cluster")


@router.get("/cluster", responses={200: {"model": ClusterInfo}})
@needs("oversee")
async def cluster(desk: DeskDep, actor: Caller) -> Json:
    """Return the known processes, oldest first, and facts about the store. Only an owner gets the store's address."""
    return Json({"store": await desk.system.describe_store(actor), "processes": await list_processes(desk)})
