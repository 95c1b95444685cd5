"""Calls about declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from midwatch.client.transport import Transport

if TYPE_CHECKING:
    from midwatch.wire.declarations import DeclarationInfo, PlanInfo


class DeclarationCalls(Transport):
    """The client's calls about declarations."""

    async def apply(
        self, content: Mapping[str, Any], *, dry_run: bool = False, prune: bool = False, adopt: bool = False
    ) -> PlanInfo:
        """Make automations, goals and rules match the content of a file; it needs `set`. An error changes nothing."""
        return await self._post("/apply", content, dry_run=dry_run, prune=prune, adopt=adopt)

    async def export_declarations(self, names: Iterable[str] = (), tags: Iterable[str] = ()) -> DeclarationInfo:
        """Return automations, open goals and declared rules as the content of a file, without secrets."""
        return await self._get("/declarations", name=list(names), tag=list(tags))
