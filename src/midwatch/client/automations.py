"""Calls about automations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midwatch.client.transport import Transport, path_of

if TYPE_CHECKING:
    from midwatch.wire.automations import AutomationInfo, ChangedAutomation, ImportInfo, NodeInfo, RunInfo
    from midwatch.wire.tasks import TaskInfo
    from midwatch.wire.triggers import FiringDetail, FiringInfo, TriggerInfo, WebhookInfo


class AutomationCalls(Transport):
    """The client's calls about automations."""

    async def automations(
        self, status: str = "", *, scope_kind: str | None = None, scope_id: str | None = None,
        tag: Iterable[str] = (), limit: int = 20,
    ) -> Sequence[AutomationInfo]:  # fmt: skip
        """Return automations with this status and every `tag`, newest first; `all` returns every automation.

        Without a status, deleted automations are left out.
        """
        return await self._get(
            "/automations",
            "automations",
            status=status,
            scope_kind=scope_kind,
            scope_id=scope_id,
            tag=[*tag],
            limit=limit,
        )

    async def automation(self, automation_id: str) -> AutomationInfo:
        """Return one automation, even if it is deleted."""
        return await self._get(path_of("automation", automation_id))

    async def create_automation(self, prompt: str, wish: Mapping[str, Any]) -> ChangedAutomation:
        """Create an automation. One of `at`, `every` and `cron` in `wish` sets its times, or `triggers` starts it."""
        return await self._post("/automations", {"prompt": prompt, **wish})

    async def patch_automation(
        self, automation_id: str, wish: Mapping[str, Any], *, prompt: str | None = None, revision: int | None = None
    ) -> ChangedAutomation:
        """Change the fields in `wish`. Raise Conflict if the automation's revision is not `revision` any more."""
        return await self._patch(path_of("automation", automation_id), wish, prompt=prompt, revision=revision)

    async def pause_automation(self, automation_id: str, *, stop: bool = False) -> AutomationInfo:
        """Pause an automation. A running task continues, or is cancelled with `stop`."""
        return await self._post(path_of("automation", automation_id, "pause"), stop=stop or None)

    async def resume_automation(self, automation_id: str) -> AutomationInfo:
        """Resume an automation, even if it is deleted."""
        return await self._post(path_of("automation", automation_id, "resume"))

    async def run_automation(self, automation_id: str) -> TaskInfo:
        """Run an automation now, in addition to its schedule."""
        return await self._post(path_of("automation", automation_id, "run"))

    async def delete_automation(self, automation_id: str) -> AutomationInfo:
        """Delete an automation. For 30 days, `resume_automation` can restore it."""
        return await self._delete(path_of("automation", automation_id))

    async def automation_history(self, automation_id: str, limit: int = 20) -> Sequence[RunInfo]:
        """Return the runs of an automation, newest first."""
        return await self._get(path_of("automation", automation_id, "history"), "runs", limit=limit)

    async def automation_chain(self, automation_id: str) -> Sequence[NodeInfo]:
        """Return the automations that are linked with an automation, earlier ones first."""
        return await self._get(path_of("automation", automation_id, "chain"), "nodes")

    async def triggers(self, automation_id: str) -> Sequence[TriggerInfo]:
        """Return the triggers of an automation, with the addresses of its webhooks."""
        return await self._get(path_of("automation", automation_id, "triggers"), "triggers")

    async def firings(self, automation_id: str, limit: int = 20) -> Sequence[FiringInfo]:
        """Return the firings of an automation, newest first."""
        return await self._get(path_of("automation", automation_id, "firings"), "firings", limit=limit)

    async def firing(self, firing_id: str) -> FiringDetail:
        """Return one firing, with its payload if the caller may manage its automation."""
        return await self._get(path_of("firing", firing_id))

    async def replay_firing(self, firing_id: str) -> FiringInfo:
        """Fire again with the payload of a firing."""
        return await self._post(path_of("firing", firing_id, "replay"))

    async def test_trigger(
        self, automation_id: str, payload: Any = None, *, trigger_id: str | None = None
    ) -> FiringInfo:
        """Fire a trigger of an automation by hand, the first one by default."""
        return await self._post(
            path_of("automation", automation_id, "trigger"), {"payload": payload}, trigger_id=trigger_id
        )

    async def webhook_secret(self, trigger_id: str, *, rotate: bool = False) -> WebhookInfo:
        """Return the address and the secret of a webhook. With `rotate` it gets a new secret first."""
        path = path_of("trigger", trigger_id, "secret")
        return await (self._post(path) if rotate else self._get(path))

    async def export_automations(self, ids: Iterable[str] = ()) -> Sequence[AutomationInfo]:
        """Return automations in the form that `import_automations` takes.

        Without `ids`, all automations that are not deleted are returned.
        """
        return await self._get("/automations/export", "automations", id=list(ids))

    async def import_automations(self, automations: Sequence[Mapping[str, Any]]) -> Sequence[ImportInfo]:
        """Create automations that do not exist yet, and change automations that differ.

        If one of them causes an error, nothing is changed.
        """
        reply: Mapping[str, Sequence[ImportInfo]] = await self._post("/automations/import", automations=automations)
        return reply["automations"]
