"""Actors and tokens as the HTTP interface shows them."""

from __future__ import annotations

from typing import Annotated, Any

from typing_extensions import TypedDict

from midwatch.domain.fields import Example
from midwatch.domain.identity import Token
from midwatch.wire.shapes import shape_of


class Me(TypedDict):
    """The actor and the role of the request, and the version of the server. Only owners see `home`."""

    actor: str
    role: str
    version: str
    home: str | None


@shape_of(Token)
class TokenInfo(dict[str, Any]):
    """A token as JSON, without its secret."""


@shape_of(Token, secret=Annotated[str, Example("mw_3f9c0a6d51e2")])
class NewToken(TokenInfo):
    """A new token, with its secret. No other reply contains the secret."""


class TokenPage(TypedDict):
    """Tokens of programs and browsers, newest first."""

    tokens: list[TokenInfo]


class SignIn(TypedDict):
    """The actor of the browser, and the time when the sign-in expires."""

    actor: str
    role: str
    expires_at: str


class SignOut(TypedDict):
    """The reply to a sign-out, which removes the cookie."""

    signed_out: bool


class Link(TypedDict):
    """An address that signs in one browser and works only once."""

    url: str
    expires_at: str
