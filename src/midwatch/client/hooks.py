"""Calls about hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midwatch.client.transport import Transport, path_of

if TYPE_CHECKING:
    from midwatch.wire.hooks import HookInfo, HookTest


class HookCalls(Transport):
    """The client's calls about hooks."""

    async def hooks(self) -> Sequence[HookInfo]:
        """Return the hooks of the server's process, in the order in which they are called."""
        return await self._get("/hooks", "hooks")

    async def test_hook(
        self, name: str, seam: str, *, tool: str | None = None, arguments: Mapping[str, Any] | None = None,
        text: str | None = None,
    ) -> HookTest:  # fmt: skip
        """Call a hook with an example and return its decision."""
        return await self._post(path_of("hook", name, "test"), seam=seam, tool=tool, arguments=arguments, text=text)
