"""How a route reaches the runtime it serves, and who speaks to it."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from midwatch.identity import OWNER, Actor
from midwatch.runtime import Runtime

ACTOR = "midwatch.actor"
"""Where the guard puts the actor into the scope of a request."""


async def runtime_of(request: Request) -> Runtime:
    """The runtime behind the app."""
    return cast(Runtime, request.app.state.runtime)


async def actor_of(request: Request) -> Actor:
    """Who speaks."""
    return cast(Actor, request.scope.get(ACTOR, OWNER))


Desk = Annotated[Runtime, Depends(runtime_of)]
Who = Annotated[Actor, Depends(actor_of)]
