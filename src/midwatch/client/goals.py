"""Calls about goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midwatch.client.transport import Transport, path_of

if TYPE_CHECKING:
    from midwatch.wire.automations import RunInfo
    from midwatch.wire.goals import GoalInfo


class GoalCalls(Transport):
    """The client's calls about goals."""

    async def goals(self, status: str = "", *, tag: Iterable[str] = (), limit: int = 20) -> Sequence[GoalInfo]:
        """Return goals with this status and every `tag`, newest first; without a status return all goals."""
        return await self._get("/goals", "goals", status=status, tag=[*tag], limit=limit)

    async def goal(self, goal_id: str) -> GoalInfo:
        """Return one goal."""
        return await self._get(path_of("goal", goal_id))

    async def create_goal(self, objective: str, wish: Mapping[str, Any] | None = None) -> GoalInfo:
        """Create a goal. Its first step starts at once, or as soon as the goal's session has a thread."""
        return await self._post("/goals", {"objective": objective, **(wish or {})})

    async def edit_goal(
        self, goal_id: str, wish: Mapping[str, Any], *, objective: str | None = None, revision: int | None = None
    ) -> GoalInfo:
        """Change the fields in `wish`. Raise Conflict if the goal's revision is not `revision` any more."""
        return await self._patch(path_of("goal", goal_id), wish, objective=objective, revision=revision)

    async def goal_steps(self, goal_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Return the tasks of a goal, newest first."""
        return await self._get(path_of("goal", goal_id, "steps"), "runs", limit=limit)

    async def step_goal(self, goal_id: str) -> GoalInfo:
        """Start the next step of a goal now."""
        return await self._post(path_of("goal", goal_id, "step"))

    async def pause_goal(self, goal_id: str) -> GoalInfo:
        """Pause a goal and stop its running step."""
        return await self._post(path_of("goal", goal_id, "pause"))

    async def resume_goal(self, goal_id: str) -> GoalInfo:
        """Resume a goal."""
        return await self._post(path_of("goal", goal_id, "resume"))

    async def complete_goal(self, goal_id: str, evidence: str = "") -> GoalInfo:
        """Mark a goal as complete.

        If the agent of the goal calls this, the goal ends after the running step. If the goal has a verifier, the goal
        ends only if the verifier agrees.
        """
        return await self._post(path_of("goal", goal_id, "complete"), evidence=evidence)

    async def delay_goal(self, goal_id: str, duration: float | str, reason: str) -> GoalInfo:
        """Delay the next step of a goal by `duration`: 0, or from 1 minute to 12 hours."""
        return await self._post(path_of("goal", goal_id, "delay"), duration=duration, reason=reason)

    async def clear_goal(self, goal_id: str) -> GoalInfo:
        """Remove a goal and stop its running step."""
        return await self._delete(path_of("goal", goal_id))
