"""Read a page of a list with a filter. A page looks at a limited number of records, however few of them match."""

from __future__ import annotations

from typing import Any, TypeVar

from midwatch.domain.listing import Listing
from midwatch.stores.sql import PATHS
from midwatch.stores.verbs.tx import Tx

R = TypeVar("R")

MOST_LOOKED = 20_000
"""Maximum number of records that one page of a list looks at."""
MOST_JOINED = 8_000
"""The same for a list that is read through another table, which takes longer."""
NEWEST = "zz"
"""A text after every id, in every order that a database may use for texts."""


def list_page(
    tx: Tx, record: type[R], path: str, params: dict[str, Any], *, before: str | None, limit: int, filtered: bool
) -> Listing[R]:
    """Return a page of a list by one of the paths of `midwatch.stores.sql.PATHS`.

    `filtered` says whether not every record of the path matches.
    """
    noun, _, name = path.partition(".")
    look = MOST_JOINED if PATHS[noun][name].source else MOST_LOOKED
    page = {**params, "before": before or NEWEST, "limit": limit}
    end = tx.value(str, f"{noun}.end_{name}", **page, look=look) if filtered else None
    found = Listing(tx.find_all(record, f"{noun}.list_{name}", **page, end=end or ""))
    found.next = found[-1].id if len(found) == limit else end  # type: ignore[attr-defined] # every such record has an id
    return found
