"""Calls about the server: agents, notices, usage, settings, processes, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from midwatch.client.transport import Transport, format_moment, path_of, quote_key

if TYPE_CHECKING:
    from midwatch.wire.agents import AgentInfo
    from midwatch.wire.alerts import AlertInfo, AlertPage, RoutineInfo
    from midwatch.wire.deliveries import DeliveryInfo
    from midwatch.wire.identity import Link, Me, NewToken, TokenInfo
    from midwatch.wire.system import ClusterInfo, Directories, Health, Now, Ready, SettingsInfo
    from midwatch.wire.tasks import TaskInfo
    from midwatch.wire.usage import UsageInfo


class DeskCalls(Transport):
    """The client's calls about the server: agents, notices, usage, settings, processes and tokens."""

    async def deliveries(
        self, status: str | None = None, task_id: str | None = None, limit: int = 50
    ) -> Sequence[DeliveryInfo]:
        """Return notices, newest first."""
        return await self._get("/deliveries", "deliveries", status=status, task_id=task_id, limit=limit)

    async def delivery(self, delivery_id: str) -> DeliveryInfo:
        """Return one notice."""
        return await self._get(path_of("delivery", delivery_id))

    async def retry_delivery(self, delivery_id: str) -> DeliveryInfo:
        """Send a failed notice again."""
        return await self._post(path_of("delivery", delivery_id, "retry"))

    async def agents(self) -> Sequence[AgentInfo]:
        """Return all agents, sorted by name."""
        return await self._get("/agents", "agents")

    async def test_agent(self, name: str, idempotency_key: str | None = None) -> TaskInfo:
        """Submit a short task to an agent, to see whether the agent works."""
        return await self._post(path_of("agent", name, "test"), idempotency_key=idempotency_key)

    async def now(self, since: datetime | None = None) -> Now:
        """Return an overview. Usage is counted from `since`, or over the last 24 hours."""
        return await self._get("/now", since=format_moment(since))

    async def usage(
        self,
        since: datetime | None = None,
        until: datetime | None = None,
        by: Sequence[str] | None = None,
        *,
        zone: str | None = None,
        session_key: str | None = None,
    ) -> UsageInfo:
        """Return the usage of tasks that ended in a period, by default in the last 24 hours.

        `by` lists what to group by: some of actor, agent, session, model and day; the default is actor and agent. Days
        begin at midnight in `zone`, or in the server's zone.
        """
        period = {"since": format_moment(since), "until": format_moment(until)}
        return await self._get("/usage", **period, by=by, zone=zone, session_key=session_key)

    async def settings(self) -> SettingsInfo:
        """Return the settings, without secrets."""
        return await self._get("/settings")

    async def directories(self, path: str | None = None, *, hidden: bool = False) -> Directories:
        """Return the subdirectories of `path` on the server's machine.

        The default is the home directory of the user that the server runs as.
        """
        return await self._get("/directories", path=path, hidden=hidden)

    async def watchdog(
        self,
        overdue_grace: float | str | None = None,
        running_grace: float | str | None = None,
        waiting_grace: float | str | None = None,
    ) -> AlertPage:
        """Look for problems: raise, escalate and withdraw alerts. With another grace, only look, and send nothing."""
        graces: dict[str, Any] = {
            "overdue_grace": overdue_grace,
            "running_grace": running_grace,
            "waiting_grace": waiting_grace,
        }
        return await self._post("/watchdog", **{name: grace for name, grace in graces.items() if grace is not None})

    async def alerts(self) -> Sequence[AlertInfo]:
        """Return the problems that exist now, each with the state of its alert, the oldest first."""
        return await self._get("/alerts", "alerts")

    async def acknowledge_alert(self, alert_id: str) -> AlertInfo:
        """Acknowledge an alert: there are no more notices about it until it is over."""
        return await self._post(path_of("alert", alert_id, "ack"))

    async def routines(self) -> Sequence[RoutineInfo]:
        """Return the routines that the server runs at intervals, with their last results."""
        return await self._get("/routines", "routines")

    async def cluster(self) -> ClusterInfo:
        """Return the processes that run tasks."""
        return await self._get("/cluster")

    async def me(self) -> Me:
        """Return the actor and the role of this client."""
        return await self._get("/me")

    async def link(self) -> Link:
        """Create a link that signs one browser in as the actor of this client."""
        return await self._post("/links")

    async def tokens(self) -> Sequence[TokenInfo]:
        """Return tokens of programs and browsers, newest first."""
        return await self._get("/tokens", "tokens")

    async def create_token(self, name: str, role: str, actor: str | None = None) -> NewToken:
        """Create a token for a program. Only the reply to this call contains the secret of the token."""
        return await self._post("/tokens", name=name, role=role, actor=actor)

    async def revoke_token(self, key: str) -> TokenInfo:
        """Revoke a token; `key` is the id or the name of the token."""
        return await self._delete(f"/tokens/{quote_key(key)}")

    async def health(self) -> Health:
        """Return the status and the version of the server; raise NotRunning if it does not answer."""
        return await self._get("/health")

    async def ready(self) -> Ready:
        """Return that the server accepts tasks. Raise StoreUnavailable if the database does not answer or write."""
        return await self._get("/ready")

    async def metrics(self) -> str:
        """Return metrics in the text format of Prometheus."""
        return (await self._reply("GET", "/metrics", {"accept": "text/plain"})).decode()
