"""Tx: an open transaction, with the operations that a verb may use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from midwatch.domain.event import Event
from midwatch.stores.rows import Row, decode

R = TypeVar("R")
Params = Mapping[str, Any] | Row
Mark = tuple[int, int]


class Move(NamedTuple):
    """A task that has changed its status. `before` is None for a new task, and `after` for a removed task."""

    task_id: str
    before: str | None
    after: str | None


class Tx(ABC):
    """An open transaction. All changes of a verb are stored together or, if the verb raises, not at all."""

    def __init__(self, statements: Mapping[str, str]) -> None:
        self.statements = statements
        self.events: list[Event] = []
        """Events to append. They get their seqs at the end of the transaction."""
        self.topics: set[str] = set()
        """The topics that this transaction may have changed; see `midwatch.domain.store.Commit`."""
        self.counts: dict[str | None, int] = {}
        """The open tasks that this transaction has counted: of each actor, and under None those of all actors."""
        self.moves: list[Move] = []
        """How tasks have changed their status. The counts and sums are written at the end of the transaction."""

    def mark(self) -> Mark:
        """Return how much has been collected so far."""
        return len(self.events), len(self.moves)

    def reset(self, mark: Mark) -> None:
        """Forget what was collected after `mark`, because the verb that did it has failed."""
        events, moves = mark
        del self.events[events:], self.moves[moves:]
        self.counts.clear()

    @abstractmethod
    def rows(self, name: str, params: Mapping[str, Any]) -> Iterable[Row]:
        """Return the rows of a named query."""

    @abstractmethod
    def row(self, name: str, params: Mapping[str, Any]) -> Row | None:
        """Return the first row of a named query, or None."""

    @abstractmethod
    def run(self, name: str, params: Mapping[str, Any]) -> int:
        """Run a named statement and return the number of changed rows."""

    @abstractmethod
    def run_many(self, name: str, params: Iterable[Params]) -> None:
        """Run a named statement for each of `params`."""

    @abstractmethod
    def statement(self, sql: str, params: Params) -> int:
        """Run a statement that `midwatch.stores.sql` has built, and return the number of changed rows."""

    def hint(self, agent: str, due_at: int) -> None:  # noqa: B027 - not every engine needs hints
        """Notify the engine that a task of `agent` may be claimed from `due_at` on.

        This does nothing if every commit wakes the engine.
        """

    def unblock(self, task_id: str) -> None:  # noqa: B027
        """Notify the engine that this task does not run now, so that another task with the same gate may be claimed."""

    def find(self, record: type[R], name: str, /, **params: Any) -> R | None:
        """Return the record in the first row of a named query, or None."""
        row = self.row(name, params)
        return None if row is None else decode(record, row)

    def find_all(self, record: type[R], name: str, /, **params: Any) -> list[R]:
        """Return the records of a named query."""
        return [decode(record, row) for row in self.rows(name, params)]

    def count_once(self, whose: str | None, name: str, /, **params: Any) -> int:
        """Return the number that a named query counts. A transaction counts only once, and then adds its own rows."""
        if whose not in self.counts:
            self.counts[whose] = self.value(int, name, **params) or 0
        return self.counts[whose]

    def value(self, kind: type[R], name: str, /, **params: Any) -> R | None:
        """Return the first value of the first row of a named query, or None. `kind` is the type of the value."""
        row = self.row(name, params)
        value: R | None = row[0] if row is not None else None
        return value
