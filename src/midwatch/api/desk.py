"""How a route reaches the runtime it serves, and who speaks to it."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from midwatch.runtime import Runtime

OWNER = "owner"
"""The actor of every request: there is one token, and it is the owner's."""


async def runtime_of(request: Request) -> Runtime:
    """The runtime behind the app."""
    return cast(Runtime, request.app.state.runtime)


Desk = Annotated[Runtime, Depends(runtime_of)]
