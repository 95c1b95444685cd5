"""Calls about automations and goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from midwatch.client.transport import Transport, named, without_none
from midwatch.submission import AutomationWish, GoalWish, NewAutomation, NewGoal
from midwatch.wire import (
    AutomationInfo,
    GoalInfo,
    RunInfo,
    TakenInfo,
    TaskInfo,
)


class AutomationCalls(Transport):
    """Automations."""

    async def automations(
        self, status: str = "", *, scope_kind: str | None = None, scope_id: str | None = None, limit: int = 20
    ) -> Sequence[AutomationInfo]:
        """Newest first: all but deleted ones, those of one status, or `all`."""
        asked = {"status": status, "scope_kind": scope_kind, "scope_id": scope_id, "limit": limit}
        return cast(Sequence[AutomationInfo], (await self._get("/automations", asked))["automations"])

    async def automation(self, automation_id: str) -> AutomationInfo:
        """One automation, deleted ones too."""
        return cast(AutomationInfo, await self._get(f"/automations/{named('automation', automation_id)}"))

    async def create_automation(self, prompt: str, wish: NewAutomation) -> AutomationInfo:
        """Make one. Exactly one of `at`, `every` and `cron` says when it runs."""
        return cast(AutomationInfo, await self._post("/automations", {"prompt": prompt, **wish}))

    async def patch_automation(
        self, automation_id: str, wish: AutomationWish, *, prompt: str | None = None, revision: int | None = None
    ) -> AutomationInfo:
        """Change what is said. Conflict when it is not at `revision` any more."""
        said = {**wish, **without_none({"prompt": prompt, "revision": revision})}
        return cast(AutomationInfo, await self._patch(f"/automations/{named('automation', automation_id)}", said))

    async def pause_automation(self, automation_id: str) -> AutomationInfo:
        """Fire no more; what runs goes on."""
        return cast(AutomationInfo, await self._post(f"/automations/{named('automation', automation_id)}/pause"))

    async def resume_automation(self, automation_id: str) -> AutomationInfo:
        """Fire again, also after it was deleted."""
        return cast(AutomationInfo, await self._post(f"/automations/{named('automation', automation_id)}/resume"))

    async def run_automation(self, automation_id: str) -> TaskInfo:
        """Run it now, beside its times."""
        return cast(TaskInfo, await self._post(f"/automations/{named('automation', automation_id)}/run"))

    async def delete_automation(self, automation_id: str) -> AutomationInfo:
        """Delete it; resuming brings it back for 30 days."""
        return cast(AutomationInfo, await self._call("DELETE", f"/automations/{named('automation', automation_id)}"))

    async def automation_history(self, automation_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Its runs, newest first."""
        found = await self._get(f"/automations/{named('automation', automation_id)}/history", {"limit": limit})
        return cast(Sequence[RunInfo], found["runs"])

    async def export_automations(self, ids: Iterable[str] = ()) -> Sequence[AutomationInfo]:
        """These, or all that are not deleted, for an import."""
        found = await self._get("/automations/export", {"id": list(ids)})
        return cast(Sequence[AutomationInfo], found["automations"])

    async def import_automations(self, automations: Sequence[Mapping[str, Any]]) -> Sequence[TakenInfo]:
        """Make those that are not there, change those that differ; all of it or nothing."""
        found = await self._post("/automations/import", {"automations": automations})
        return cast(Sequence[TakenInfo], found["automations"])


class GoalCalls(Transport):
    """Goals."""

    async def goals(self, status: str = "", *, limit: int = 20) -> Sequence[GoalInfo]:
        """Newest first; of one status, or all."""
        return cast(Sequence[GoalInfo], (await self._get("/goals", {"status": status, "limit": limit}))["goals"])

    async def goal(self, goal_id: str) -> GoalInfo:
        """One goal."""
        return cast(GoalInfo, await self._get(f"/goals/{named('goal', goal_id)}"))

    async def create_goal(self, objective: str, wish: NewGoal | None = None) -> GoalInfo:
        """Set a goal; its first step begins at once, or when its session has a thread."""
        return cast(GoalInfo, await self._post("/goals", {"objective": objective, **(wish or {})}))

    async def edit_goal(
        self, goal_id: str, wish: GoalWish, *, objective: str | None = None, revision: int | None = None
    ) -> GoalInfo:
        """Change what is said. Conflict when it is not at `revision` any more."""
        said = {**wish, **without_none({"objective": objective, "revision": revision})}
        return cast(GoalInfo, await self._patch(f"/goals/{named('goal', goal_id)}", said))

    async def goal_steps(self, goal_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Its tasks, newest first."""
        found = await self._get(f"/goals/{named('goal', goal_id)}/steps", {"limit": limit})
        return cast(Sequence[RunInfo], found["runs"])

    async def step_goal(self, goal_id: str) -> GoalInfo:
        """Begin the next step now."""
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/step"))

    async def pause_goal(self, goal_id: str) -> GoalInfo:
        """Rest until it is resumed; a running step is stopped."""
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/pause"))

    async def resume_goal(self, goal_id: str) -> GoalInfo:
        """Go on."""
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/resume"))

    async def complete_goal(self, goal_id: str, evidence: str = "") -> GoalInfo:
        """It is reached. Said by its agent, it counts when the step has ended and its verifier, if any, agrees."""
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/complete", {"evidence": evidence}))

    async def delay_goal(self, goal_id: str, duration: float | str, reason: str) -> GoalInfo:
        """Begin the next step later: 0, or 1 minute to 12 hours."""
        said = {"duration": duration, "reason": reason}
        return cast(GoalInfo, await self._post(f"/goals/{named('goal', goal_id)}/delay", said))

    async def clear_goal(self, goal_id: str) -> GoalInfo:
        """Give it up and remove it; a running step is stopped."""
        return cast(GoalInfo, await self._call("DELETE", f"/goals/{named('goal', goal_id)}"))
