"""What a desk on a shared PostgreSQL can be asked about its database. The driver is loaded when somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midwatch.desk.desk import Desk
    from midwatch.stores.cluster import DatabaseClock, Seen


def without_password(url: str) -> str:
    """Return the address of a database without its password."""
    from midwatch.stores.postgres import shown

    return shown(url)


async def processes_seen(desk: Desk) -> dict[str, Seen]:
    """Every process that made itself known, dead or alive, by its id."""
    from midwatch.stores.cluster import seen

    store: Any = desk.store
    return await seen(store)


async def compare_clocks(desk: Desk) -> DatabaseClock:
    """How the database's clock compares with this machine's."""
    from midwatch.stores.cluster import database_clock

    store: Any = desk.store
    return await database_clock(store)
