"""Calls about automations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from midwatch.client.transport import Transport, named, without_none

if TYPE_CHECKING:
    from midwatch.wire.automations import AutomationInfo, RunInfo, TakenInfo
    from midwatch.wire.tasks import TaskInfo


class AutomationCalls(Transport):
    """Automations."""

    async def automations(
        self, status: str = "", *, scope_kind: str | None = None, scope_id: str | None = None, limit: int = 20
    ) -> Sequence[AutomationInfo]:
        """Newest first: all but deleted ones, those of one status, or `all`."""
        asked = {"status": status, "scope_kind": scope_kind, "scope_id": scope_id, "limit": limit}
        return cast("Sequence[AutomationInfo]", (await self._get("/automations", asked))["automations"])

    async def automation(self, automation_id: str) -> AutomationInfo:
        """One automation, deleted ones too."""
        return cast("AutomationInfo", await self._get(f"/automations/{named('automation', automation_id)}"))

    async def create_automation(self, prompt: str, wish: Mapping[str, Any]) -> AutomationInfo:
        """Make one. Exactly one of `at`, `every` and `cron` says when it runs."""
        return cast("AutomationInfo", await self._post("/automations", {"prompt": prompt, **wish}))

    async def patch_automation(
        self, automation_id: str, wish: Mapping[str, Any], *, prompt: str | None = None, revision: int | None = None
    ) -> AutomationInfo:
        """Change what is said. Conflict when it is not at `revision` any more."""
        said = {**wish, **without_none({"prompt": prompt, "revision": revision})}
        return cast("AutomationInfo", await self._patch(f"/automations/{named('automation', automation_id)}", said))

    async def pause_automation(self, automation_id: str) -> AutomationInfo:
        """Fire no more; what runs goes on."""
        return cast("AutomationInfo", await self._post(f"/automations/{named('automation', automation_id)}/pause"))

    async def resume_automation(self, automation_id: str) -> AutomationInfo:
        """Fire again, also after it was deleted."""
        return cast("AutomationInfo", await self._post(f"/automations/{named('automation', automation_id)}/resume"))

    async def run_automation(self, automation_id: str) -> TaskInfo:
        """Run it now, beside its times."""
        return cast("TaskInfo", await self._post(f"/automations/{named('automation', automation_id)}/run"))

    async def delete_automation(self, automation_id: str) -> AutomationInfo:
        """Delete it; resuming brings it back for 30 days."""
        return cast("AutomationInfo", await self._call("DELETE", f"/automations/{named('automation', automation_id)}"))

    async def automation_history(self, automation_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Its runs, newest first."""
        found = await self._get(f"/automations/{named('automation', automation_id)}/history", {"limit": limit})
        return cast("Sequence[RunInfo]", found["runs"])

    async def export_automations(self, ids: Iterable[str] = ()) -> Sequence[AutomationInfo]:
        """These, or all that are not deleted, for an import."""
        found = await self._get("/automations/export", {"id": list(ids)})
        return cast("Sequence[AutomationInfo]", found["automations"])

    async def import_automations(self, automations: Sequence[Mapping[str, Any]]) -> Sequence[TakenInfo]:
        """Make those that are not there, change those that differ; all of it or nothing."""
        found = await self._post("/automations/import", {"automations": automations})
        return cast("Sequence[TakenInfo]", found["automations"])
