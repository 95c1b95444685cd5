"""The list of processes that run tasks on the store of a desk: their state, the leader, their running tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from midwatch.desk.desk import Desk
from midwatch.desk.shared_database import list_known_processes
from midwatch.domain.instance import Instance


async def list_processes(desk: Desk) -> list[dict[str, Any]]:
    """Return each registered process as JSON, oldest first."""
    known = await desk.store.list_instances()
    living = {instance.id for instance in await desk.living()}
    running = Counter(task.lease_owner for task in await desk.store.list_running_tasks())
    ages: dict[str, float] = {}
    if desk.settings.db:
        seen = await list_known_processes(desk)
        ages = {name: round(process.heartbeat_age, 3) for name, process in seen.items()}
        leader = next((name for name, process in seen.items() if process.leads), None)
    else:
        leader = _find_leader(desk, [instance for instance in known if instance.id in living])
    return [
        {
            **instance.snapshot(),
            "running": running[instance.id],
            "live": instance.id in living,
            "heartbeat_age": ages.get(instance.id),
            "leader": instance.id == leader,
        }
        for instance in known
    ]


def _find_leader(desk: Desk, living: list[Instance]) -> str | None:
    """Return the id of the server, or of the only live process if the leader's lock is held; otherwise None."""
    servers = [instance.id for instance in living if instance.role == "up"]
    if servers:
        return servers[0]
    return living[0].id if len(living) == 1 and desk.home.lock("leader").is_taken() else None
