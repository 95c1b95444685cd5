"""The tasks that run in this process, by id."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from midwatch.domain.handoff import Handoff
from midwatch.running.run import Run


class RunningTasks(dict[str, Run]):
    """The runs of this process, by task id. Implements `midwatch.domain.handoff.RunningTasks`."""

    def pause(self, task_id: str) -> AbstractAsyncContextManager[None]:
        """Release the slot of a task while the task waits for a handoff; do nothing if the task runs elsewhere."""
        run = self.get(task_id)
        return nullcontext() if run is None else run.wait_for_handoff()

    async def attend(self, task_id: str, handoff: Handoff) -> None:
        """Wait until a handoff of a task has ended; return at once if the task does not run in this process."""
        run = self.get(task_id)
        if run is not None:
            await run.delegations.attend(handoff, run.wait_for_handoff)
