"""The port of tasks: claims, filters and pages, and the methods of a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from midwatch.domain.changes import Changes, Fence
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.event import Event
from midwatch.domain.listing import Listing
from midwatch.domain.task import Status, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """A filter of tasks; an empty filter matches all tasks. `before` is the id of the last task on the page before."""

    statuses: tuple[Status, ...] = ()
    agent: str | None = None
    session_key: str | None = None
    creator: str | None = None
    tags: tuple[str, ...] = ()
    """A task must have all of them."""
    before: str | None = None
    limit: int = 50


class Summary(NamedTuple):
    """The number of tasks by status."""

    total: int
    pending: int
    running: int
    done: int
    failed: int
    cancelled: int

    @property
    def active(self) -> int:
        """Return how many tasks are pending or running."""
        return self.pending + self.running


class Claim(NamedTuple):
    """A claimed task, and the secret with which its agent can call midwatch during this attempt."""

    task: Task
    token: str


class Claims(NamedTuple):
    """The claimed tasks, and the time when the next task becomes due."""

    taken: list[Claim]
    next_due: int | None


class SubmitResult(NamedTuple):
    """The stored task, and whether this call created the task.

    `created` is False if an earlier call with the same key created the task.
    """

    task: Task
    created: bool


class TaskStore(Protocol):
    """Port: tasks. Every method is one transaction; its changes are durable when the call returns."""

    async def submit(
        self, task: Task, max_open: int | None = None, max_of_actor: int | None = None, also: Changes | None = None
    ) -> SubmitResult:
        """Write a new task with its event and, in the same transaction, the changes `also`.

        If the creator used the same key before, return the first task instead, or raise KeyReused if the request
        differs. Otherwise raise LimitReached if `max_open` tasks of clients are open, or if `max_of_actor` tasks of the
        creator are open. A message of a person asks the running task of its gate to yield, if that task can yield.
        """

    async def claim(self, request: ClaimRequest, now: int) -> Claims:
        """Claim due tasks in order, one for each gate and directory, within the slots of the request.

        Each claimed task becomes running, with a new attempt, owner and token, a `task_started` event and a start
        notice. A slot is reserved for each actor who waits and has no slot; see `midwatch.running.slots`.
        """

    async def apply(self, changes: Changes) -> None:
        """Write a step completely, or raise LeaseLost or Conflict if its fence or a guard fails."""

    async def record_late(self, late: Event) -> bool:
        """Append a `task_late` event, and return True.

        Return False, and append nothing, if this attempt already has such an event.
        """

    async def get_task(self, task_id: str) -> Task | None:
        """Return the task, or None."""

    async def list_tasks(self, which: TaskFilter) -> Listing[Task]:
        """Return a page of tasks, newest first."""

    async def count_tasks(self) -> Summary:
        """Return the number of tasks by status. The store keeps these numbers; nothing is counted."""

    async def list_related_tasks(self, root_id: str) -> list[Task]:
        """Return the task `root_id` and its retries and children, oldest first, at most 100."""

    async def list_failed_tasks(self, since: int, limit: int = 10) -> list[Task]:
        """Return tasks that failed at or after `since` and were not tried again, newest first."""

    async def list_running_tasks(self, owner: str | None = None) -> list[Task]:
        """Return running tasks, of one owner or of all."""

    async def find_gate_holder(self, gate: str) -> str | None:
        """Return the id of the task that runs in this gate, or None."""

    async def find_dir_holder(self, dir_key: str) -> str | None:
        """Return the id of the running task that has this directory for itself alone, or None."""

    async def list_open_events(self, fence: Fence) -> list[Event]:
        """Return the events of an attempt that start something which has not ended yet.

        These are start events of turns, calls of models and calls of tools that have no end event.
        """

    async def prune_tasks(self, before: int, keep: int) -> int:
        """Remove tasks that ended before the time `before`, and the oldest beyond `keep` tasks; return how many.

        This stops after a few milliseconds, so that it blocks nobody; 0 means that nothing is left to prune. The
        deliveries and approvals of these tasks are removed, too.
        """
