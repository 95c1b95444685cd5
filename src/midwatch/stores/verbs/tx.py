"""What a verb may do: run named statements in the open transaction, and say what it changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from midwatch.domain.event import Event

Row = tuple[Any, ...]
Params = Mapping[str, Any] | Row


class Tx(Protocol):
    """An open transaction. Whatever a verb does is kept as a whole or, if it raises, not at all."""

    events: list[Event]
    """Events to append; they get their numbers at the end of the transaction."""
    topics: set[str]
    """What this transaction may have changed; see `midwatch.domain.store.Commit`."""

    def rows(self, name: str, params: Mapping[str, Any]) -> Iterable[Row]:
        """The rows of a named query, fetched as they are read."""
        ...

    def row(self, name: str, params: Mapping[str, Any]) -> Row | None:
        """The first row of a named query, or None."""
        ...

    def run(self, name: str, params: Mapping[str, Any]) -> int:
        """Run a named statement; how many rows it touched."""
        ...

    def run_many(self, name: str, params: Iterable[Params]) -> None:
        """Run a named statement for each of `params`."""
        ...

    def statement(self, sql: str, params: Params) -> int:
        """Run a statement built by `midwatch.stores.sql`; how many rows it touched."""
        ...

    def hint(self, agent: str, due_at: int) -> None:
        """Tell the engine that a task of `agent` may be taken at `due_at`."""
        ...

    def unblocked(self, task_id: str) -> None:
        """Tell the engine that this task waits again or has ended, so that something in its gate may be taken."""
        ...
