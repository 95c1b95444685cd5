"""Calls about goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from midwatch.client.transport import Transport, named, without_none

if TYPE_CHECKING:
    from midwatch.wire.automations import RunInfo
    from midwatch.wire.goals import GoalInfo


class GoalCalls(Transport):
    """Goals."""

    async def goals(self, status: str = "", *, limit: int = 20) -> Sequence[GoalInfo]:
        """Newest first; of one status, or all."""
        return cast("Sequence[GoalInfo]", (await self._get("/goals", {"status": status, "limit": limit}))["goals"])

    async def goal(self, goal_id: str) -> GoalInfo:
        """One goal."""
        return cast("GoalInfo", await self._get(f"/goals/{named('goal', goal_id)}"))

    async def create_goal(self, objective: str, wish: Mapping[str, Any] | None = None) -> GoalInfo:
        """Set a goal; its first step begins at once, or when its session has a thread."""
        return cast("GoalInfo", await self._post("/goals", {"objective": objective, **(wish or {})}))

    async def edit_goal(
        self, goal_id: str, wish: Mapping[str, Any], *, objective: str | None = None, revision: int | None = None
    ) -> GoalInfo:
        """Change what is said. Conflict when it is not at `revision` any more."""
        said = {**wish, **without_none({"objective": objective, "revision": revision})}
        return cast("GoalInfo", await self._patch(f"/goals/{named('goal', goal_id)}", said))

    async def goal_steps(self, goal_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Its tasks, newest first."""
        found = await self._get(f"/goals/{named('goal', goal_id)}/steps", {"limit": limit})
        return cast("Sequence[RunInfo]", found["runs"])

    async def step_goal(self, goal_id: str) -> GoalInfo:
        """Begin the next step now."""
        return cast("GoalInfo", await self._post(f"/goals/{named('goal', goal_id)}/step"))

    async def pause_goal(self, goal_id: str) -> GoalInfo:
        """Rest until it is resumed; a running step is stopped."""
        return cast("GoalInfo", await self._post(f"/goals/{named('goal', goal_id)}/pause"))

    async def resume_goal(self, goal_id: str) -> GoalInfo:
        """Go on."""
        return cast("GoalInfo", await self._post(f"/goals/{named('goal', goal_id)}/resume"))

    async def complete_goal(self, goal_id: str, evidence: str = "") -> GoalInfo:
        """It is reached. Said by its agent, it counts when the step has ended and its verifier, if any, agrees."""
        return cast("GoalInfo", await self._post(f"/goals/{named('goal', goal_id)}/complete", {"evidence": evidence}))

    async def delay_goal(self, goal_id: str, duration: float | str, reason: str) -> GoalInfo:
        """Begin the next step later: 0, or 1 minute to 12 hours."""
        said = {"duration": duration, "reason": reason}
        return cast("GoalInfo", await self._post(f"/goals/{named('goal', goal_id)}/delay", said))

    async def clear_goal(self, goal_id: str) -> GoalInfo:
        """Give it up and remove it; a running step is stopped."""
        return cast("GoalInfo", await self._call("DELETE", f"/goals/{named('goal', goal_id)}"))
