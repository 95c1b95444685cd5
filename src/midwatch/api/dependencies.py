"""How a route reaches the desk it serves, and who speaks to it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import Depends, Request

from midwatch.api.admission import Call
from midwatch.base.errors import Forbidden, StoreError
from midwatch.desk.desk import Desk
from midwatch.domain.identity import Actor

PREFIX = "/api/v1"
"""Every route of this API version starts with this path."""
ACTOR = "midwatch.actor"
CALL = "midwatch.call"
"""Where the guard puts what it found out into the scope of a request."""
PROXY_SECONDS = 3600.0
"""How long a stream of somebody whom a proxy names goes on."""


async def desk_of(request: Request) -> Desk:
    """The desk behind the app."""
    return cast(Desk, request.app.state.desk)


async def actor_of(request: Request) -> Actor:
    """Who speaks."""
    return cast(Actor, request.scope[ACTOR])


async def owner_of(request: Request) -> Actor:
    """Who speaks, if it is an owner; else Forbidden."""
    actor = await actor_of(request)
    if actor.role != "owner":
        raise Forbidden(f"{actor.name} is {actor.role}; only an owner may do this.")
    return actor


async def call_of(request: Request) -> Call:
    """What the request says about where it comes from."""
    return cast(Call, request.scope[CALL])


async def still_allowed(request: Request) -> Callable[[], Awaitable[bool]]:
    """A look whether who speaks may still do so; a stream looks again and again. Whom a proxy names has to pass it
    again after a while, as only the proxy knows whom it lets in."""
    actor, desk = await actor_of(request), await desk_of(request)
    tokens, clock = desk.tokens, desk.clock
    until = clock.monotonic() + PROXY_SECONDS if actor.way == "proxy" else math.inf

    async def look() -> bool:
        if clock.monotonic() >= until:
            return False
        try:
            return await tokens.still_holds(actor)
        except StoreError:
            return False  # who comes again is told what is wrong

    return look


DeskDep = Annotated[Desk, Depends(desk_of)]
Who = Annotated[Actor, Depends(actor_of)]
Owner = Annotated[Actor, Depends(owner_of)]
FromWhere = Annotated[Call, Depends(call_of)]
StillAllowed = Annotated[Callable[[], Awaitable[bool]], Depends(still_allowed)]
