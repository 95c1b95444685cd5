"""Calls about the desk: agents, notices, usage, settings, processes, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, cast

from midwatch.client.transport import Transport, moment, named, quoted, without_none

if TYPE_CHECKING:
    from midwatch.wire.agents import AgentInfo
    from midwatch.wire.alerts import AlertPage, RoutineInfo
    from midwatch.wire.deliveries import DeliveryInfo
    from midwatch.wire.identity import Link, Me, TokenInfo, TokenMade
    from midwatch.wire.system import ClusterInfo, Directories, Health, Now, Ready, SettingsInfo
    from midwatch.wire.tasks import TaskInfo
    from midwatch.wire.usage import UsageInfo


class DeskCalls(Transport):
    """The desk."""

    async def deliveries(
        self, status: str | None = None, task_id: str | None = None, limit: int = 50
    ) -> Sequence[DeliveryInfo]:
        """Notices, newest first."""
        found = await self._get("/deliveries", {"status": status, "task_id": task_id, "limit": limit})
        return cast("Sequence[DeliveryInfo]", found["deliveries"])

    async def delivery(self, delivery_id: str) -> DeliveryInfo:
        """One notice."""
        return cast("DeliveryInfo", await self._get(f"/deliveries/{named('delivery', delivery_id)}"))

    async def retry_delivery(self, delivery_id: str) -> DeliveryInfo:
        """Try to send a failed notice again."""
        return cast("DeliveryInfo", await self._post(f"/deliveries/{named('delivery', delivery_id)}/retry"))

    async def agents(self) -> Sequence[AgentInfo]:
        """All agents, by name."""
        return cast("Sequence[AgentInfo]", (await self._get("/agents"))["agents"])

    async def test_agent(self, name: str, idempotency_key: str | None = None) -> TaskInfo:
        """Give an agent a short task, to see whether it works."""
        return cast("TaskInfo", await self._post(f"/agents/{named('agent', name)}/test", key=idempotency_key))

    async def now(self, since: datetime | None = None) -> Now:
        """The desk at a glance; usage is counted from `since`, or over the last 24 hours."""
        return cast("Now", await self._get("/now", {"since": moment(since)}))

    async def usage(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        by: Sequence[str] | None = None,
        *,
        zone: str | None = None,
        session_key: str | None = None,
    ) -> UsageInfo:
        """What the tasks that ended since then, or in the last 24 hours, have cost, told apart by some of actor,
        agent, session, model and day; by the first two if nothing is said. Days are those of `zone`, or of the
        server's."""
        asked = {"since": moment(since), "until": moment(until), "by": by, "zone": zone}
        return cast("UsageInfo", await self._get("/usage", {**asked, "session_key": session_key}))

    async def settings(self) -> SettingsInfo:
        """What is set, without anything secret."""
        return cast("SettingsInfo", await self._get("/settings"))

    async def directories(self, path: str | None = None, *, hidden: bool = False) -> Directories:
        """The directories in a directory of the server's machine, or in its user's home."""
        return cast("Directories", await self._get("/directories", {"path": path, "hidden": hidden}))

    async def watchdog(self) -> AlertPage:
        """Look for what is overdue, stuck or silent, and tell of it."""
        return cast("AlertPage", await self._post("/watchdog"))

    async def routines(self) -> Sequence[RoutineInfo]:
        """What the server does at intervals, and how it went."""
        return cast("Sequence[RoutineInfo]", (await self._get("/routines"))["routines"])

    async def cluster(self) -> ClusterInfo:
        """Which processes run tasks."""
        return cast("ClusterInfo", await self._get("/cluster"))

    async def me(self) -> Me:
        """Who this client is to the server."""
        return cast("Me", await self._get("/me"))

    async def link(self) -> Link:
        """An address that signs one browser in, as whoever this client is."""
        return cast("Link", await self._post("/links"))

    async def tokens(self) -> Sequence[TokenInfo]:
        """Tokens of programs and browsers, newest first."""
        return cast("Sequence[TokenInfo]", (await self._get("/tokens"))["tokens"])

    async def create_token(self, name: str, role: str, actor: str | None = None) -> TokenMade:
        """A token for a program; its secret is not told again."""
        said = without_none({"name": name, "role": role, "actor": actor})
        return cast("TokenMade", await self._post("/tokens", said))

    async def revoke_token(self, key: str) -> TokenInfo:
        """End a token, by its id or name."""
        return cast("TokenInfo", await self._call("DELETE", f"/tokens/{quoted(key)}"))

    async def health(self) -> Health:
        """Whether the server answers."""
        return cast("Health", await self._get("/health"))

    async def ready(self) -> Ready:
        """That the database answers and tasks are taken, or StoreUnavailable."""
        return cast("Ready", await self._get("/ready"))

    async def metrics(self) -> str:
        """Figures for Prometheus, in its text format."""
        return (await self._reply("GET", "/metrics", headers={"accept": "text/plain"})).text
