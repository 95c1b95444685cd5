"""Dependencies of routes: the desk, the actor, the idempotency key, the origin of a request."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, cast

from fastapi import Depends, Header, Request

from midwatch.api.admission import Call
from midwatch.base.errors import StoreError
from midwatch.desk.desk import Desk
from midwatch.domain.identity import Actor

PREFIX = "/api/v1"
ACTOR = "midwatch.actor"
CALL = "midwatch.call"
"""The keys under which the guard stores the actor and the call in the scope of a request."""
PROXY_SECONDS = 3600.0
"""Seconds after which the event stream of an actor from a proxy ends."""


async def desk_of(request: Request) -> Desk:
    """Return the desk behind the app."""
    return cast(Desk, request.app.state.desk)


async def actor_of(request: Request) -> Actor:
    """Return the actor of the request, which the guard has recognised."""
    return cast(Actor, request.scope[ACTOR])


async def call_of(request: Request) -> Call:
    """Return the checked parts of the request."""
    return cast(Call, request.scope[CALL])


async def make_access_check(request: Request) -> Callable[[], Awaitable[bool]]:
    """Return a function that checks whether the actor still has access. Event streams call it repeatedly.

    Only a proxy knows whether its actors still have access, so their streams end after a while and they connect again.
    """
    actor, desk = await actor_of(request), await desk_of(request)
    tokens, clock = desk.tokens, desk.clock
    until = clock.monotonic() + PROXY_SECONDS if actor.way == "proxy" else math.inf

    async def check() -> bool:
        if clock.monotonic() >= until:
            return False
        try:
            return await tokens.is_valid(actor)
        except StoreError:
            return False  # the next request of the client gets the error

    return check


DeskDep = Annotated[Desk, Depends(desk_of)]
Caller = Annotated[Actor, Depends(actor_of)]
IdempotencyKey = Annotated[str | None, Header()]
FromWhere = Annotated[Call, Depends(call_of)]
StillAllowed = Annotated[Callable[[], Awaitable[bool]], Depends(make_access_check)]
