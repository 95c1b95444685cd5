"""The processes that run tasks of a desk's store: which of them live, which one leads, and how many tasks each runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from midwatch.desk.desk import Desk
from midwatch.desk.shared_database import list_known_processes
from midwatch.domain.instance import Instance


async def list_processes(desk: Desk) -> list[dict[str, Any]]:
    """Return all registered processes as JSON, the oldest process first."""
    instances = await desk.store.list_instances()
    living = {instance.id for instance in await desk.living()}
    running = Counter(task.lease_owner for task in await desk.store.list_running_tasks())
    ages: dict[str, float] = {}
    if desk.settings.db:
        states = await list_known_processes(desk)
        ages = {name: round(process.heartbeat_age, 3) for name, process in states.items()}
        leader = next((name for name, process in states.items() if process.leads), None)
    else:
        leader = _find_leader(desk, [instance for instance in instances if instance.id in living])
    return [
        {
            **instance.snapshot(),
            "running": running[instance.id],
            "live": instance.id in living,
            "heartbeat_age": ages.get(instance.id),
            "leader": instance.id == leader,
        }
        for instance in instances
    ]


def _find_leader(desk: Desk, living: list[Instance]) -> str | None:
    """Return the id of the leader, or None if it is unknown.

    The leader is the server. Without a server it is the only live process, if a process holds the leader's lock.
    """
    servers = [instance.id for instance in living if instance.role == "up"]
    if servers:
        return servers[0]
    return living[0].id if len(living) == 1 and desk.home.lock("leader").is_taken() else None
