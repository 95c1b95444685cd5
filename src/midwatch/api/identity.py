"""Routes of identity: the current actor, sign-in and sign-out, links for browsers, tokens for programs."""

from __future__ import annotations

import logging
from collections import deque

from fastapi import Request

from midwatch.api.admission import COOKIE
from midwatch.api.bodies import SignInBody, TokenBody
from midwatch.api.dependencies import Caller, DeskDep, FromWhere
from midwatch.api.describe import make_router
from midwatch.api.permissions import needs
from midwatch.api.reply import Json, make_problem
from midwatch.base.clock import Clock, iso
from midwatch.base.errors import InvalidInput, LimitReached, Unauthorized
from midwatch.base.version import __version__
from midwatch.domain.identity import LIVES_SECONDS
from midwatch.wire.identity import Link, Me, NewToken, SignIn, SignOut, TokenInfo, TokenPage

MINUTE = 60.0
MOST_OF_A_PEER, MOST_OF_ALL = 10, 100

log = logging.getLogger("midwatch.guard")

router = make_router("identity")


class Failures:
    """The failed sign-ins of the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, str]] = deque()

    def add(self, peer: str) -> float | None:
        """Count a failed sign-in from this address. Return the seconds to wait after too many failures, else None."""
        now = self._clock.monotonic()
        while self._recent and self._recent[0][0] <= now - MINUTE:
            self._recent.popleft()
        of_peer = [at for at, who in self._recent if who == peer]
        if len(of_peer) >= MOST_OF_A_PEER or len(self._recent) >= MOST_OF_ALL:
            first = of_peer[0] if len(of_peer) >= MOST_OF_A_PEER else self._recent[0][0]
            return first + MINUTE - now
        if not of_peer:
            log.warning("a sign-in from %s failed", peer)
        self._recent.append((now, peer))
        return None


@router.get("/me", responses={200: {"model": Me}})
@needs("know")
async def me(desk: DeskDep, actor: Caller) -> Json:
    """Return the current actor, and facts about the server."""
    home = desk.system.home_for(actor)
    return Json({"actor": actor.name, "role": actor.role, "version": __version__, "home": home})


@router.post("/sign-in", responses={200: {"model": SignIn}})
@needs("open")
async def sign_in(desk: DeskDep, call: FromWhere, request: Request, body: SignInBody) -> Json:
    """Sign a browser in with the code of a link or with a token; the reply sets a cookie. Needs no token."""
    if (body.code is None) == (body.token is None):
        raise InvalidInput("send either `code`, the code of a link, or `token`.", field="code")
    try:
        token, secret = await desk.tokens.sign_in(code=body.code, token=body.token)
    except Unauthorized:
        failures: Failures = request.app.state.failures
        if (wait := failures.add(call.peer)) is None:
            raise
        too_many = make_problem(
            LimitReached("too many failed sign-ins; wait a minute, then try again with a new link.")
        )
        too_many.headers["retry-after"] = str(int(wait) + 1)
        return too_many
    reply = Json({"actor": token.actor, "role": token.role, "expires_at": iso(token.expires_at)})
    lives = LIVES_SECONDS["browser"]
    reply.set_cookie(
        COOKIE, secret, max_age=int(lives or 0), path="/", secure=call.secure, httponly=True, samesite="strict"
    )
    return reply


@router.post("/sign-out", responses={200: {"model": SignOut}})
@needs("sign_in")
async def sign_out(desk: DeskDep, actor: Caller, call: FromWhere) -> Json:
    """Sign a browser out: revoke its token and remove its cookie."""
    await desk.tokens.sign_out(actor)
    reply = Json({"signed_out": True})
    reply.delete_cookie(COOKIE, path="/", secure=call.secure, httponly=True, samesite="strict")
    return reply


@router.post("/links", status_code=201, responses={201: {"model": Link}})
@needs("sign_in")
async def make_link(desk: DeskDep, actor: Caller, call: FromWhere) -> Json:
    """Create a link that signs a browser in with the same actor and role. The link works once, within ten minutes."""
    link, code = await desk.tokens.link(actor)
    return Json({"url": f"{call.own_origin}/sign-in#{code}", "expires_at": iso(link.expires_at)}, 201)


@router.get("/tokens", responses={200: {"model": TokenPage}})
@needs("administer")
async def list_tokens(desk: DeskDep, actor: Caller) -> Json:
    """List the tokens of programs and browsers, newest first."""
    return Json({"tokens": [token.snapshot() for token in await desk.tokens.list(by=actor)]})


@router.post("/tokens", status_code=201, responses={201: {"model": NewToken}})
@needs("administer")
async def create_token(desk: DeskDep, actor: Caller, body: TokenBody) -> Json:
    """Create a token for a program. Only this reply contains the secret of the token."""
    token, secret = await desk.tokens.create(body.name, body.role, actor=body.actor, by=actor)
    return Json({**token.snapshot(), "secret": secret}, 201)


@router.delete("/tokens/{key}", responses={200: {"model": TokenInfo}})
@needs("administer")
async def revoke_token(desk: DeskDep, actor: Caller, key: str) -> Json:
    """Revoke a token by its id or name."""
    return Json((await desk.tokens.revoke(key, by=actor)).snapshot())
