"""Helpers for records: raise NotFound for a missing record, and change a record even if others change it meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import ClassVar, Generic, TypeVar

from midwatch.base.clock import Clock
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.automation import Automation
from midwatch.domain.changes import Changes
from midwatch.domain.goal import Goal
from midwatch.domain.identity import AnyActor
from midwatch.domain.store import Store
from midwatch.domain.task import TRIES
from midwatch.services.authorization import authorize, own_record

T = TypeVar("T")


def require(record: T | None, noun: str, key: str) -> T:
    """Return the record, or raise NotFound if the record is None. `noun` and `key` name the record in the error."""
    if record is None:
        raise NotFound(noun, key)
    return record


def parse_status(status: str, known: Iterable[str]) -> str:
    """Return the status that a list is filtered by, in lower case: empty, `all`, or a known status.

    Raise InvalidInput for any other text.
    """
    chosen = status.strip().lower()
    if chosen not in ("", "all", *known):
        raise InvalidInput(f"the status must be one of: all, {', '.join(known)}.", field="status")
    return chosen


async def apply_with_retry(store: Store, name: str, compute: Callable[[], Awaitable[tuple[T, Changes]]]) -> T:
    """Call `compute`, write the changes that it returns, and return the result that it returns.

    If a record changed meanwhile, `compute` is called again. `name` names the record in the error message.
    """
    for _ in range(TRIES):
        result, changes = await compute()
        if changes == Changes():
            return result
        with suppress(Conflict):
            await store.apply(changes)
            return result
    raise Conflict(f"{name} keeps changing; try again.")


M = TypeVar("M", bound=Automation | Goal)


class ManagedRecords(Generic[M]):
    """The base class of the automation service and the goal service."""

    noun: ClassVar[str]

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def get(self, record_id: str, /, *, actor: AnyActor = None) -> M:
        """Return the record, or raise NotFound."""
        raise NotImplementedError

    async def _get_managed(self, record_id: str, actor: AnyActor) -> M:
        """Return the record, or raise Forbidden if the actor may not manage the record."""
        record = await self.get(record_id)
        authorize(actor, "manage", own_record(record))
        return record

    async def _change(
        self, record_id: str, change: Callable[[M, int], Awaitable[Changes]], actor: AnyActor = None,
        revision: int | None = None,
    ) -> M:  # fmt: skip
        """Call `change` with the record and the time, write the changes that it returns, and return the changed record.

        Raise Forbidden if the actor may not manage the record, and Conflict if `revision` is not its current revision.
        """

        async def compute() -> tuple[str, Changes]:
            record = await self._get_managed(record_id, actor)
            if revision is not None and record.revision != revision:
                raise Conflict(
                    f"{self.noun} {record.id} changed meanwhile to revision {record.revision}; read it again."
                )
            return record.id, await change(record, self._clock.now())

        return await self.get(await apply_with_retry(self._store, f"{self.noun} {record_id}", compute))
