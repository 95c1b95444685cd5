"""Calls about sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midwatch.client.transport import Transport, drop_none, session_path

if TYPE_CHECKING:
    from midwatch.domain.steering import SendMode
    from midwatch.services.sessions import InterruptMode
    from midwatch.wire.sessions import Interruption, MessageInfo, SentInfo, SessionInfo, SessionPage


class SessionCalls(Transport):
    """The client's calls about sessions."""

    async def sessions(self, *, before: str | None = None, limit: int = 50) -> SessionPage:
        """Return a page of sessions, the most recently used first."""
        return await self._get("/sessions", before=before, limit=limit)

    async def session(self, key: str) -> SessionInfo:
        """Return one session."""
        return await self._get(session_path(key))

    async def create_session(
        self,
        *,
        agent: str | None = None,
        workdir: str | None = None,
        worktree: bool = False,
        title: str | None = None,
        key: str | None = None,
        prompt: str | None = None,
        approvals: Mapping[str, Any] | None = None,
    ) -> SessionInfo:
        """Open a session with an agent, or return the open session with this `key`, agent and directory.

        With `worktree` all turns of the session share a git worktree that no other session uses. `prompt` is the first
        message of a new session. `approvals` are rules for all turns.
        """
        where = {"workdir": workdir, "worktree": worktree or None, "approvals": approvals}
        return await self._post("/sessions", drop_none(where), agent=agent, title=title, key=key, prompt=prompt)

    async def messages(
        self, key: str, after: int = 0, *, limit: int = 500, html: bool = False
    ) -> Sequence[MessageInfo]:
        """Return messages whose number is greater than `after`, in order. `html` adds their texts as safe HTML."""
        return await self._get(session_path(key, "messages"), "messages", after=after, limit=limit, html=html)

    async def send(
        self,
        key: str,
        text: str,
        *,
        mode: SendMode | None = None,
        priority: int | None = None,
        idempotency_key: str | None = None,
    ) -> SentInfo:
        """Send a message to a session. The message is stored when this method returns.

        The message becomes a task, which waits while another task of the session runs. With the mode interrupt or
        after_tool the message goes to the running turn instead. The `mode` of the reply is the mode that was used.
        """
        path = session_path(key, "messages")
        return await self._post(path, text=text, mode=mode, priority=priority, idempotency_key=idempotency_key)

    async def interrupt(self, key: str, mode: InterruptMode | None = None, *, hint: str | None = None) -> Interruption:
        """End the running turn of a session: at once, or, with the mode `stop`, after one closing answer.

        Waiting messages are not affected. The reply has the task of that turn, and the command that resumes the work.
        """
        return await self._post(session_path(key, "interrupt"), mode=mode, hint=hint)

    async def restart_session(self, key: str) -> SessionInfo:
        """Stop the running turn of a session and end the process of its agent.

        The next message starts a new process.
        """
        return await self._post(session_path(key, "restart"))

    async def close_session(self, key: str) -> SessionInfo:
        """Cancel the open tasks of a session and accept no more messages."""
        return await self._post(session_path(key, "close"))
