"""Calls about tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from midwatch.client.transport import Transport, named

if TYPE_CHECKING:
    from midwatch.domain.requests import Submission
    from midwatch.wire.tasks import Counts, TaskInfo, TaskPage, TaskView


class TaskCalls(Transport):
    """Tasks."""

    async def submit(self, prompt: str, wish: Submission | None = None) -> TaskInfo:
        """Hand in a prompt. The task is durable when this returns."""
        said = {name: value for name, value in (wish or {}).items() if value is not None}
        return cast("TaskInfo", await self._post("/tasks", {"prompt": prompt, **said}))

    async def get(self, task_id: str) -> TaskInfo:
        """One task."""
        return cast("TaskInfo", await self._get(f"/tasks/{named('task', task_id)}"))

    async def task_page(self, task_id: str) -> TaskView:
        """One task with everything around it: texts as HTML, kin, notices, questions."""
        return cast("TaskView", await self._get(f"/tasks/{named('task', task_id)}/page"))

    async def list(
        self,
        *,
        status: Iterable[str] = (),
        agent: str | None = None,
        session_key: str | None = None,
        creator: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> TaskPage:
        """Tasks, newest first."""
        asked = {"status": list(status), "agent": agent, "session_key": session_key, "creator": creator}
        return cast("TaskPage", await self._get("/tasks", {**asked, "before": before, "limit": limit}))

    async def result(self, task_id: str) -> str:
        """The whole text of a task that is done."""
        return str((await self._get(f"/tasks/{named('task', task_id)}/result"))["result"])

    async def cancel(self, task_id: str) -> TaskInfo:
        """Stop a task."""
        return cast("TaskInfo", await self._post(f"/tasks/{named('task', task_id)}/cancel"))

    async def retry(
        self, task_id: str, idempotency_key: str | None = None, *, budget: Mapping[str, Any] | None = None
    ) -> TaskInfo:
        """Have a failed or cancelled task done again, as a new task; with the same key, as one new task. `budget` has
        the limits that are raised."""
        said = {} if budget is None else {"budget": dict(budget)}
        return cast("TaskInfo", await self._post(f"/tasks/{named('task', task_id)}/retry", said, key=idempotency_key))

    async def summary(self) -> Counts:
        """How many tasks there are, by status."""
        return cast("Counts", await self._get("/summary"))
