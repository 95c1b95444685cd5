"""Queries to the shared PostgreSQL of a desk. The PostgreSQL driver is loaded at the first query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midwatch.desk.desk import Desk
    from midwatch.stores.cluster import DatabaseClock, ProcessState


def without_password(url: str) -> str:
    """Return the address of a database without its password."""
    from midwatch.stores.postgres import hide_password

    return hide_password(url)


async def list_known_processes(desk: Desk) -> dict[str, ProcessState]:
    """Return the state of all registered processes, dead or alive, by the id of the process."""
    from midwatch.stores.cluster import list_processes

    store: Any = desk.store
    return await list_processes(store)


async def compare_clocks(desk: Desk) -> DatabaseClock:
    """Return the difference between the clocks of the database and this machine."""
    from midwatch.stores.cluster import read_clock

    store: Any = desk.store
    return await read_clock(store)
