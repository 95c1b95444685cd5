"""Calls about handoffs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from midwatch.client.transport import Transport, drop_none, path_of

if TYPE_CHECKING:
    from midwatch.wire.handoffs import HandoffInfo, HandoffPage


class HandoffCalls(Transport):
    """The client's calls about handoffs."""

    async def hand_over(
        self, to: str | None = None, task: Mapping[str, Any] | None = None, *, key: str | None = None, **wish: Any
    ) -> HandoffInfo:
        """Hand work over to the agent `to`, or, without `to`, to the best agent for the type of `task`.

        docs/handoffs.md lists the fields of `wish`. Several calls with the same `key` create only one handoff.
        """
        body = drop_none({"to": to, "task": task, **wish})
        return await self._post("/handoffs", body, idempotency_key=key)

    async def handoffs(
        self,
        *,
        status: Iterable[str] = (),
        agent: str | None = None,
        root: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> HandoffPage:
        """Return a page of handoffs, newest first; `agent` and `root` select those of an agent or of a root task."""
        return await self._get("/handoffs", status=list(status), agent=agent, root=root, before=before, limit=limit)

    async def handoff(self, handoff_id: str, wait: float = 0.0) -> HandoffInfo:
        """Return one handoff. With `wait`, first wait up to `wait` seconds for the end of the handoff."""
        return await self._get(path_of("handoff", handoff_id), wait=wait)

    async def cancel_handoff(self, handoff_id: str) -> HandoffInfo:
        """Cancel a handoff and stop its task, in whatever process the task runs."""
        return await self._post(path_of("handoff", handoff_id, "cancel"))

    async def retry_handoff(self, handoff_id: str, key: str | None = None) -> HandoffInfo:
        """Hand the same work to the same agent again. Several calls with the same `key` create only one handoff."""
        return await self._post(path_of("handoff", handoff_id, "retry"), idempotency_key=key)
