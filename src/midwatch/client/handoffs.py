"""Calls about handoffs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from midwatch.client.transport import Transport, named, without_none

if TYPE_CHECKING:
    from midwatch.wire.handoffs import HandoffInfo, HandoffPage


class HandoffCalls(Transport):
    """Handoffs."""

    async def hand_over(
        self,
        to: str | None = None,
        task: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        **wish: Any,
    ) -> HandoffInfo:
        """Hand work to an agent, or to the best for the type of `task`; other wishes as the handoffs page has them.
        With the same key it is done once."""
        said = without_none({"to": to, "task": task, **wish})
        return cast("HandoffInfo", await self._post("/handoffs", said, key=key))

    async def handoffs(
        self,
        *,
        status: Iterable[str] = (),
        agent: str | None = None,
        root: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> HandoffPage:
        """Handoffs, newest first; of an agent, of a root task."""
        asked = {"status": list(status), "agent": agent, "root": root, "before": before, "limit": limit}
        return cast("HandoffPage", await self._get("/handoffs", asked))

    async def handoff(self, handoff_id: str, wait: float = 0.0) -> HandoffInfo:
        """One handoff; with `wait` when it has ended, or after so many seconds as it is then."""
        return cast("HandoffInfo", await self._get(f"/handoffs/{named('handoff', handoff_id)}", {"wait": wait}))

    async def cancel_handoff(self, handoff_id: str) -> HandoffInfo:
        """End it; its task is stopped wherever it runs."""
        return cast("HandoffInfo", await self._post(f"/handoffs/{named('handoff', handoff_id)}/cancel"))

    async def retry_handoff(self, handoff_id: str, key: str | None = None) -> HandoffInfo:
        """Hand the same work to the same agent again, as a new handoff; with the same key, as one."""
        return cast("HandoffInfo", await self._post(f"/handoffs/{named('handoff', handoff_id)}/retry", key=key))
