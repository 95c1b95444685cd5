"""Calls about goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midwatch.base.errors import Conflict, NotFound
from midwatch.client.transport import Transport, path_of

if TYPE_CHECKING:
    from midwatch.wire.automations import RunInfo
    from midwatch.wire.goals import GoalInfo, SavedGoal


class GoalCalls(Transport):
    """The client's calls about goals."""

    async def goals(self, status: str = "", *, scope: str | None = None, limit: int = 20) -> Sequence[GoalInfo]:
        """Return goals with this status, newest first; without a status return all goals.

        With `scope`, such as user:ann or chat:main, return only goals of this scope.
        """
        return await self._get("/goals", "goals", status=status, scope=scope, limit=limit)

    async def goal(self, goal_id: str) -> GoalInfo:
        """Return one goal, by its id or its name."""
        return await self._get(path_of("goal", goal_id))

    async def goal_of(self, scope: str) -> GoalInfo:
        """Return the only goal of a scope, such as user:ann: its open goal or, without one, its newest.

        Raise NotFound if the scope has no goal, and Conflict if it has several open goals.
        """
        goals = await self.goals(scope=scope, limit=200)
        found = [goal for goal in goals if not goal["completed_at"]] or goals[:1]
        if not found:
            raise NotFound("goal", scope)
        if len(found) > 1:
            names = ", ".join(goal["name"] or goal["id"] for goal in found[:5])
            raise Conflict(f"several goals are open in {scope}: {names}; name one of them.")
        return found[0]

    async def create_goal(self, objective: str, wish: Mapping[str, Any] | None = None) -> SavedGoal:
        """Create a goal. Its first step starts at once, or as soon as the goal's session has a thread."""
        return await self._post("/goals", {"objective": objective, **(wish or {})})

    async def edit_goal(
        self, goal_id: str, wish: Mapping[str, Any], *, objective: str | None = None, revision: int | None = None
    ) -> SavedGoal:
        """Change the fields in `wish`. Raise Conflict if the goal's revision is not `revision` any more."""
        return await self._patch(path_of("goal", goal_id), wish, objective=objective, revision=revision)

    async def goal_steps(self, goal_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Return the tasks of a goal, newest first."""
        return await self._get(path_of("goal", goal_id, "steps"), "runs", limit=limit)

    async def step_goal(self, goal_id: str) -> GoalInfo:
        """Start the next step of a goal now."""
        return await self._post(path_of("goal", goal_id, "step"))

    async def pause_goal(self, goal_id: str, *, stop: bool = False) -> GoalInfo:
        """Pause a goal. With `stop`, also stop its running step."""
        return await self._post(path_of("goal", goal_id, "pause"), stop=stop or None)

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
