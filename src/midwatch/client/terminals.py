"""Calls about terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from midwatch.client.transport import Transport, quoted

if TYPE_CHECKING:
    from midwatch.wire.sessions import ScreenInfo


class TerminalCalls(Transport):
    """Terminals of sessions."""

    async def screen(self, key: str, *, styled: bool = False) -> ScreenInfo:
        """What a session's terminal shows; with `styled` also as escape sequences that paint it."""
        return cast("ScreenInfo", await self._get(f"/sessions/{quoted(key)}/screen", {"styled": styled}))

    async def open_terminal(self, key: str) -> ScreenInfo:
        """Have a session's program running before it is spoken to."""
        return cast("ScreenInfo", await self._post(f"/sessions/{quoted(key)}/open"))

    async def press(self, key: str, keys: str) -> None:
        """Type into a session's terminal."""
        await self._post(f"/sessions/{quoted(key)}/keys", {"keys": keys})

    async def resize(self, key: str, columns: int, rows: int) -> ScreenInfo:
        """Give a session's terminal another size."""
        return cast(
            "ScreenInfo", await self._post(f"/sessions/{quoted(key)}/resize", {"columns": columns, "rows": rows})
        )
