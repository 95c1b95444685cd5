"""The tasks that run in this process, by id."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from midwatch.domain.handoff import Handoff
from midwatch.domain.tool_call import ToolCall, ToolDecision
from midwatch.running.run import Run
from midwatch.running.tool_checks import ToolChecks
from midwatch.running.turn import LiveTurn


class RunningTasks(dict[str, Run]):
    """The runs of this process, by task id. Implements the ports `RunningTasks` of handoffs and `ToolGate`."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: dict[str, LiveTurn] = {}
        self._checks: dict[str, ToolChecks] = {}

    def pause(self, task_id: str) -> AbstractAsyncContextManager[None]:
        """Release the slot of a task while the task waits for a handoff; do nothing if the task runs elsewhere."""
        run = self.get(task_id)
        return nullcontext() if run is None else run.wait_for_handoff()

    def read_worked_seconds(self, task_id: str, attempt: int) -> float | None:
        """Return for how many seconds an attempt has worked, or None if it does not run in this process."""
        run = self.get(task_id)
        return run.worked_seconds if run is not None and run.task.attempt == attempt else None

    async def attend(self, task_id: str, handoff: Handoff) -> None:
        """Wait until a handoff of a task has ended; return at once if the task does not run in this process."""
        run = self.get(task_id)
        if run is not None:
            await run.delegations.attend(handoff, run.wait_for_handoff)

    # -- tools that the agent's program asks about ---------------------------------------------------------------

    def open_turn(self, turn: LiveTurn) -> None:
        """Let the program of the agent ask about tools from now on."""
        self._turns[turn.task_id] = turn

    async def close_turn(self, task_id: str) -> None:
        """End all checks of the turn, because the turn has ended."""
        del self._turns[task_id]
        if checks := self._checks.pop(task_id, None):
            await checks.close()

    async def check_tool(self, task_id: str, call: ToolCall, wait: float) -> ToolDecision | None:
        """Return the decision about a tool call; None if there is none after `wait` seconds.

        Raise KeyError if no turn of the task runs in this process.
        """
        turn = self._turns[task_id]
        checks = self._checks.setdefault(task_id, ToolChecks(turn))
        return await checks.check(call, wait)
