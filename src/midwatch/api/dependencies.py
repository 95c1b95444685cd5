"""Dependencies of routes: values that FastAPI passes to a route, such as the desk and the actor of the request."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, cast

from fastapi import Depends, Header, Request

from midwatch.api.admission import Call
from midwatch.base.errors import InvalidInput, StoreError
from midwatch.desk.desk import Desk
from midwatch.domain.identity import Actor

ACTOR = "midwatch.actor"
CALL = "midwatch.call"
"""The guard stores the actor and the call in the ASGI scope of a request, under the keys `ACTOR` and `CALL`."""
PROXY_SECONDS = 3600.0
"""Seconds after which an event stream ends if a proxy has named its actor."""


async def desk_of(request: Request) -> Desk:
    """Return the desk that the app serves."""
    return cast(Desk, request.app.state.desk)


async def actor_of(request: Request) -> Actor:
    """Return the actor of the request, which the guard has recognised."""
    return cast(Actor, request.scope[ACTOR])


async def call_of(request: Request) -> Call:
    """Return the parts of the request that admission has checked."""
    return cast(Call, request.scope[CALL])


async def make_access_check(request: Request) -> Callable[[], Awaitable[bool]]:
    """Return a function that returns whether the actor still has access. Event streams call this function repeatedly.

    If a proxy has named the actor, only the proxy knows whether the actor still has access. So such a stream ends after
    a while, and the client must connect again.
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


def add_key(fields: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Return the fields of a body with the idempotency key of the header. Raise InvalidInput if they differ."""
    if key is None:
        return fields
    if fields.get("idempotency_key") not in (None, key):
        raise InvalidInput(
            "the header and the body have different idempotency keys; send only one key.", field="idempotency_key"
        )
    return {**fields, "idempotency_key": key}
