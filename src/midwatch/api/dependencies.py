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
"""Where the guard puts the actor and the call into the scope of a request."""
PROXY_SECONDS = 3600.0
"""How long an event stream lasts for an actor that a proxy names."""


async def desk_of(request: Request) -> Desk:
    """Return the desk behind the app."""
    return cast(Desk, request.app.state.desk)


async def actor_of(request: Request) -> Actor:
    """Return the actor of the request, as the guard recognised it."""
    return cast(Actor, request.scope[ACTOR])


async def call_of(request: Request) -> Call:
    """Return the checked parts of the request."""
    return cast(Call, request.scope[CALL])


async def make_access_check(request: Request) -> Callable[[], Awaitable[bool]]:
    """Return a check whether the actor is still admitted; event streams repeat it.

    Only the proxy knows whom it admits, so an actor that it names must connect again after a while.
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
            return False  # the next request reports the error

    return check


DeskDep = Annotated[Desk, Depends(desk_of)]
Caller = Annotated[Actor, Depends(actor_of)]
IdempotencyKey = Annotated[str | None, Header()]
FromWhere = Annotated[Call, Depends(call_of)]
StillAllowed = Annotated[Callable[[], Awaitable[bool]], Depends(make_access_check)]
