"""Identity: actors, what an actor may do, and the tokens that prove who an actor is.

A token is a secret that only its holder knows; the store keeps only a hash of it. The owner's own token is a file in
the home directory and is not stored in the database.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput
from midwatch.base.ids import new_id
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import SignedIn, TokenCreated, TokenRevoked, event
from midwatch.domain.fields import Example, Hidden, JsonRecord
from midwatch.domain.task import Task

TokenRole = Literal["viewer", "operator", "owner"]
Role = TokenRole | Literal["attempt"]
"""The role of an actor. The agent of a running task has the role `attempt`; no token in the list has this role."""
Kind = Literal["api", "browser", "link"]
Way = Literal["owner", "bearer", "cookie", "proxy", "attempt"]

ROLES: tuple[TokenRole, ...] = get_args(TokenRole)
LIVES_SECONDS: Mapping[Kind, float | None] = {"api": None, "browser": 30 * 86400.0, "link": 600.0}
NOTED_SECONDS = 3600.0
"""The time of the last use of a token is written at most once in this many seconds."""
KEPT_SECONDS = 7 * 86400.0
"""A revoked or expired token is still listed for this many seconds."""
MOST_OF_AN_ACTOR = 1000
"""The greatest number of valid links and browser tokens that one actor may have."""
LONGEST_ACTOR = 100
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(JsonRecord):
    """Proof of an actor's identity.

    `api` tokens are for programs, `browser` tokens are cookies, and a `link` works once. A token may be created with
    another token. `root` is the first token of this chain; when the first token ends, the others are not valid any
    more.
    """

    noun: ClassVar[str] = "token"

    id: Annotated[str, Example("k_06f2m8yq8c4g6j2m")]
    kind: Annotated[Kind, Example("api")]
    name: Annotated[str, Example("ci")]
    actor: Annotated[str, Example("ci")]
    role: Annotated[TokenRole, Example("operator")]
    hash: Hidden[str]
    created_at: int
    created_by: Annotated[str, Example("owner")]
    expires_at: int | None = None
    last_used_at: int | None = None
    revoked_at: int | None = None
    root: Hidden[str | None] = None

    def holds(self, now: int) -> bool:
        """Return whether the token is valid."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class Actor(NamedTuple):
    """A person or program that acts. `name` goes into every record and event; `role` decides what is allowed."""

    name: str
    role: Role
    way: Way = "owner"
    """How the actor proved its identity."""
    token: Token | None = None
    """The token of the actor; None if the actor uses the owner's token file or was named by a proxy."""
    task: Task | None = None
    """If the actor is an agent, its running task."""
    session: str | None = None
    """If this is set, the actor may use only the session with this key."""

    @property
    def work(self) -> frozenset[str] | None:
        """Return the ids of the only work that the actor may use, or None if the actor may use all work."""
        if self.task is not None:
            return list_work(self.task)
        return None if self.session is None else frozenset({self.session})


OWNER = Actor("owner", "owner")
"""The owner, whose token is the file in the home directory."""
AnyActor = Actor | str | None
"""The actor of a call to a service. The role of an `Actor` is checked. A name or None is a program of the owner, which
may do everything; the name is the person for whom the program works."""


def actor_name(actor: AnyActor) -> str | None:
    """Return the name of the actor that is written into records and events."""
    return actor.name if isinstance(actor, Actor) else actor


def agent_task(actor: AnyActor) -> Task | None:
    """Return the running task of the actor if the actor is an agent, or else None."""
    return actor.task if isinstance(actor, Actor) else None


def list_work(task: Task) -> frozenset[str]:
    """Return the ids of everything that a task belongs to.

    Two tasks belong together if they have one of these ids in common: they have the same session, the same automation
    or goal, the same first task, or one of them is a retry or a child of the other.
    """
    ids = (task.id, task.session_key, task.root_id, task.parent_id, task.retry_of, task.cause_id)
    return frozenset(name for name in ids if name)


class TokenStore(Protocol):
    """Port: tokens. They are written as part of a step, with `Changes`."""

    async def get_task(self, task_id: str) -> Task | None:
        """Return the task, or None."""

    async def find_token(self, hashed: str, now: int) -> Token | None:
        """Return the token with this hash, or None.

        A token with a root is returned only if the root is valid.
        """

    async def get_token(self, key: str) -> Token | None:
        """Return the token with the id `key`, or else the valid api token with the name `key`, or None."""

    async def list_tokens(self) -> list[Token]:
        """Return the tokens of programs and browsers, newest first, at most 1000."""

    async def count_tokens(self, actor: str, now: int) -> int:
        """Count the valid links and browser tokens of an actor."""

    async def prune_tokens(self, before: int) -> int:
        """Remove tokens that were revoked or expired before the time `before`, and return how many."""

    async def apply(self, changes: Changes) -> None:
        """Write a step completely, or raise Conflict if one of its guards fails."""


# -- pure steps --------------------------------------------------------------------------------------------------


def attempt_token(task_id: str, secret: str) -> str:
    """Return the token for the agent of an attempt.

    The token contains the id of the task and is valid while the attempt runs.
    """
    return f"ma_{task_id}.{secret}"


def hash_of(secret: str) -> str:
    """Return the hash of a secret; the store keeps this hash instead of the secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def check_actor(name: str) -> str:
    """Return the name of an actor; raise InvalidInput if the name is not valid."""
    if not 1 <= len(name) <= LONGEST_ACTOR or not name.isprintable() or name != name.strip():
        raise InvalidInput(f"an actor's name must have 1 to {LONGEST_ACTOR} printable characters.", field="actor")
    return name


def make(kind: Kind, name: str, who: Actor, now: int, *, by: str, root: str | None = None) -> tuple[Token, str]:
    """Return a new token for the actor `who`, and the secret of the token."""
    assert who.role != "attempt", "the token of an agent is never stored"
    secret, lives = f"mw_{secrets.token_urlsafe(32)}", LIVES_SECONDS[kind]
    token = Token(
        id=new_id("k", now), kind=kind, name=name, actor=who.name, role=who.role, hash=hash_of(secret), created_at=now,
        created_by=by, expires_at=None if lives is None else now + int(lives * SECOND), root=root,
    )  # fmt: skip
    return token, secret


def create(token: Token) -> Changes:
    """Return the step that stores a new token."""
    payload = TokenCreated(**_about(token), for_actor=token.actor)
    return Changes(records=(token,), events=(event(payload, token.created_at, actor=token.created_by),))


def revoke(token: Token, now: int, actor: str) -> Changes:
    """Return the step that revokes a token; the step fails if the token is already revoked."""
    return Changes(updates=(_end(token, now),), events=(event(TokenRevoked(**_about(token)), now, actor=actor),))


def enter(browser: Token, link: Token | None) -> Changes:
    """Return the step that signs a browser in.

    The step also revokes the link that the browser used, so a link works only once.
    """
    signed_in = event(SignedIn(**_about(browser)), browser.created_at, actor=browser.actor)
    ends = () if link is None else (_end(link, browser.created_at),)
    return Changes(updates=ends, records=(browser,), events=(signed_in,))


def _end(token: Token, now: int) -> Update:
    return Update("token", token.id, {"revoked_at": now}, {"revoked_at": None})


def _about(token: Token) -> dict[str, Any]:
    return {"token_id": token.id, "name": token.name, "role": token.role, "token_kind": token.kind}


def root_of(token: Token | None) -> str | None:
    """Return the id of the first token of the chain that `token` belongs to; None without a token."""
    return None if token is None else token.root or token.id
