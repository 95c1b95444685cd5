"""The processes that run tasks on the store of a desk: which live, which one leads, how much each runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from midwatch.desk.desk import Desk
from midwatch.desk.shared_database import processes_seen
from midwatch.domain.instance import Instance


async def list_processes(desk: Desk) -> list[dict[str, Any]]:
    """Return each process that made itself known as JSON, oldest first."""
    known = await desk.store.list_instances()
    living = {instance.id for instance in await desk.living()}
    running = Counter(task.lease_owner for task in await desk.store.list_running_tasks())
    ages: dict[str, float] = {}
    if desk.settings.db:
        seen = await processes_seen(desk)
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
    """Return the server, or else the only live process if the lock is held; the lock does not name its holder."""
    servers = [instance.id for instance in living if instance.role == "up"]
    if servers:
        return servers[0]
    return living[0].id if len(living) == 1 and desk.home.lock("leader").is_taken() else None
