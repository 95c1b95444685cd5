"""Actors and tokens as the HTTP interface shows them."""

from __future__ import annotations

from typing_extensions import TypedDict


class Me(TypedDict):
    """Who speaks, and to whom; only an owner is told where the home is."""

    actor: str
    role: str
    version: str
    home: str | None


class TokenInfo(TypedDict):
    """A token as JSON, without its secret."""

    id: str
    kind: str
    name: str
    actor: str
    role: str
    created_at: str
    created_by: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class TokenMade(TokenInfo):
    """A new token, with its secret, which is told once."""

    secret: str


class TokenPage(TypedDict):
    """Tokens of programs and browsers, newest first."""

    tokens: list[TokenInfo]


class SignedIn(TypedDict):
    """Whose browser it is now, and until when."""

    actor: str
    role: str
    expires_at: str


class SignedOut(TypedDict):
    """The cookie is removed."""

    signed_out: bool


class Link(TypedDict):
    """An address that signs one browser in, once."""

    url: str
    expires_at: str
