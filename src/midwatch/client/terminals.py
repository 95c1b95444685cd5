"""Calls about terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midwatch.client.transport import Transport, session_path

if TYPE_CHECKING:
    from midwatch.wire.sessions import ScreenInfo


class TerminalCalls(Transport):
    """The client's calls about terminals of sessions."""

    async def screen(self, key: str, *, styled: bool = False) -> ScreenInfo:
        """Return the screen of a session's terminal; `styled` adds the screen with its escape sequences."""
        return await self._get(session_path(key, "screen"), styled=styled)

    async def open_terminal(self, key: str) -> ScreenInfo:
        """Start the program of a session in its terminal, before the first message."""
        return await self._post(session_path(key, "open"))

    async def press(self, key: str, keys: str) -> None:
        """Type into a session's terminal."""
        await self._send("POST", session_path(key, "keys"), {"keys": keys})

    async def resize(self, key: str, columns: int, rows: int) -> ScreenInfo:
        """Change the size of a session's terminal."""
        return await self._post(session_path(key, "resize"), columns=columns, rows=rows)
