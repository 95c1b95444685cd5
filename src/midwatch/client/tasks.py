"""Calls about tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from midwatch.client.transport import Transport, drop_none, path_of

if TYPE_CHECKING:
    from midwatch.domain.requests import Submission
    from midwatch.wire.tasks import Counts, TaskInfo, TaskPage, TaskView


class TaskCalls(Transport):
    """The client's calls about tasks."""

    async def submit(self, prompt: str, wish: Submission | None = None) -> TaskInfo:
        """Submit a task. The task is stored when this method returns."""
        return await self._post("/tasks", drop_none({"prompt": prompt, **(wish or {})}))

    async def get(self, task_id: str) -> TaskInfo:
        """Return one task."""
        return await self._get(path_of("task", task_id))

    async def task_page(self, task_id: str) -> TaskView:
        """Return one task with its texts as HTML, and with its related tasks, notices and questions."""
        return await self._get(path_of("task", task_id, "page"))

    async def list(
        self,
        *,
        status: Iterable[str] = (),
        agent: str | None = None,
        session_key: str | None = None,
        creator: str | None = None,
        tag: Iterable[str] = (),
        before: str | None = None,
        limit: int = 50,
    ) -> TaskPage:
        """Return a page of tasks, newest first. A task must have every `tag`."""
        which = {"status": [*status], "agent": agent, "session_key": session_key, "creator": creator, "tag": [*tag]}
        return await self._get("/tasks", **which, before=before, limit=limit)

    async def result(self, task_id: str) -> str:
        """Return the full result of a task that is done."""
        return await self._get(path_of("task", task_id, "result"), "result")

    async def cancel(self, task_id: str) -> TaskInfo:
        """Cancel a task."""
        return await self._post(path_of("task", task_id, "cancel"))

    async def retry(
        self, task_id: str, idempotency_key: str | None = None, *, budget: Mapping[str, Any] | None = None
    ) -> TaskInfo:
        """Retry a failed or cancelled task as a new task.

        Several calls with the same `idempotency_key` create only one new task. `budget` has the limits that the new
        task gets instead of the old ones.
        """
        return await self._post(path_of("task", task_id, "retry"), budget=budget, idempotency_key=idempotency_key)

    async def summary(self) -> Counts:
        """Return the number of tasks by status."""
        return await self._get("/summary")
