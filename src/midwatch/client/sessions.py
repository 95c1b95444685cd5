"""Calls about sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from midwatch.client.transport import Transport, quoted, without_none

if TYPE_CHECKING:
    from midwatch.domain.steering import SendMode
    from midwatch.services.sessions import InterruptMode
    from midwatch.wire.sessions import Interrupted, MessageInfo, SentInfo, SessionInfo, SessionPage


class SessionCalls(Transport):
    """Conversations."""

    async def sessions(self, *, before: str | None = None, limit: int = 50) -> SessionPage:
        """Conversations, the most recently used first."""
        return cast("SessionPage", await self._get("/sessions", {"before": before, "limit": limit}))

    async def session(self, key: str) -> SessionInfo:
        """One conversation."""
        return cast("SessionInfo", await self._get(f"/sessions/{quoted(key)}"))

    async def create_session(
        self,
        *,
        agent: str | None = None,
        workdir: str | None = None,
        worktree: bool = False,
        title: str | None = None,
        key: str | None = None,
        prompt: str | None = None,
    ) -> SessionInfo:
        """Open a conversation with an agent; one that is open with that key, agent and directory is returned. With
        `worktree` its turns share a git worktree of its own. `prompt` is said first in it, when it is new."""
        said = {"agent": agent, "workdir": workdir, "worktree": worktree or None, "title": title, "key": key}
        said = without_none({**said, "prompt": prompt})
        return cast("SessionInfo", await self._post("/sessions", said))

    async def messages(
        self, key: str, after: int = 0, *, limit: int = 500, html: bool = False
    ) -> Sequence[MessageInfo]:
        """Messages with a greater number than `after`, in order; with `html` also as HTML that is safe to show."""
        found = await self._get(f"/sessions/{quoted(key)}/messages", {"after": after, "limit": limit, "html": html})
        return cast("Sequence[MessageInfo]", found["messages"])

    async def send(
        self,
        key: str,
        text: str,
        *,
        mode: SendMode | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
    ) -> SentInfo:
        """Say something in a conversation: a task, which waits while another one runs there; with `mode` interrupt or
        after_tool a message for the turn that runs. The reply's `mode` tells. It is durable when this returns."""
        said = without_none({"text": text, "mode": mode, "priority": priority})
        return cast("SentInfo", await self._post(f"/sessions/{quoted(key)}/messages", said, key=idempotency_key))

    async def interrupt(self, key: str, mode: InterruptMode | None = None, *, hint: str | None = None) -> Interrupted:
        """End the turn that runs in a conversation: at once, or with `mode` stop after one closing answer. What waits
        goes on. Says what was stopped, and how it is resumed."""
        said = without_none({"mode": mode, "hint": hint})
        return cast("Interrupted", await self._post(f"/sessions/{quoted(key)}/interrupt", said or None))

    async def restart_session(self, key: str) -> SessionInfo:
        """Stop what runs in a conversation and end its agent's process; the next message begins a new one."""
        return cast("SessionInfo", await self._post(f"/sessions/{quoted(key)}/restart"))

    async def close_session(self, key: str) -> SessionInfo:
        """Cancel what is open in a conversation and take no more messages."""
        return cast("SessionInfo", await self._post(f"/sessions/{quoted(key)}/close"))
