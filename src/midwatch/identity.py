"""Identity: who acts, what they may do, and the tokens that prove it.

A token is a secret that only its holder knows; the store keeps its hash. The owner's own token is a file in the home
directory and is not stored here.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, get_args

from midwatch.change import Changes, Update
from midwatch.clock import SECOND, Clock, iso, new_id
from midwatch.errors import Conflict, Forbidden, InvalidInput, LimitReached, NotFound, Unauthorized
from midwatch.event import SignedIn, TokenCreated, TokenRevoked, event
from midwatch.task import Task

log = logging.getLogger("midwatch.identity")

Role = Literal["viewer", "operator", "owner"]
Kind = Literal["api", "browser", "link"]
Way = Literal["owner", "bearer", "cookie", "proxy", "attempt"]

ROLES: tuple[Role, ...] = get_args(Role)
LIVES_SECONDS: Mapping[Kind, float | None] = {"api": None, "browser": 30 * 86400.0, "link": 600.0}
NOTED_SECONDS = 3600.0
"""The last use of a token is written at most this often."""
KEPT_SECONDS = 7 * 86400.0
"""A token that was revoked or has expired is listed for this long."""
MOST_OF_AN_ACTOR = 1000
"""Links and browsers of one actor that may live at once."""
LONGEST_ACTOR = 100
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Proof of who somebody is. `api` ones are for programs, `browser` ones are cookies, a `link` works once.

    `root` is the token it was made with, at the beginning of the chain: none outlives its root.
    """

    noun: ClassVar[str] = "token"

    id: str
    kind: Kind
    name: str
    actor: str
    role: Role
    hash: str
    created_at: int
    created_by: str
    expires_at: int | None = None
    last_used_at: int | None = None
    revoked_at: int | None = None
    root: str | None = None

    def holds(self, now: int) -> bool:
        """Whether it still proves anything."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def snapshot(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {
            "id": self.id,
            "kind": self.kind,
            "name": self.name,
            "actor": self.actor,
            "role": self.role,
            "created_at": iso(self.created_at),
            "created_by": self.created_by,
            "expires_at": iso(self.expires_at),
            "last_used_at": iso(self.last_used_at),
            "revoked_at": iso(self.revoked_at),
        }


class Actor(NamedTuple):
    """Who acts. `name` goes into every record and event; `role` says what is allowed."""

    name: str
    role: Role
    way: Way = "owner"
    """How they came in."""
    token: Token | None = None
    """What proved it, unless it was the owner's file or a proxy."""
    task: Task | None = None
    """The running task of an agent that speaks for itself; it may look, and signal what belongs to that task."""

    def must_manage(self, creator: str | None, manage_mode: str) -> None:
        """Forbidden, unless it is an owner's, one's own, or everybody's to manage."""
        if self.role != "owner" and manage_mode != "scope_all" and creator not in (None, self.name):
            raise Forbidden(
                f"this belongs to {creator}, who alone manages it; ask them to set manage_mode to scope_all."
            )


OWNER = Actor("owner", "owner")
"""Whoever holds the token in the home directory."""


class TokenStore(Protocol):
    """Port: tokens. They are written through `Changes`."""

    async def get_task(self, task_id: str) -> Task | None:
        """The task, or None."""
        ...

    async def token_of(self, hashed: str, now: int) -> Token | None:
        """The token with this hash whose root, if it has one, holds; or None."""
        ...

    async def get_token(self, key: str) -> Token | None:
        """The token with this id, else the live api token with this name, or None."""
        ...

    async def list_tokens(self) -> list[Token]:
        """All tokens, newest first."""
        ...

    async def count_tokens(self, actor: str, now: int) -> int:
        """How many links and browsers of an actor live."""
        ...

    async def prune_tokens(self, before: int) -> int:
        """Remove tokens that ended before a time. Returns how many went."""
        ...

    async def apply(self, changes: Changes) -> None:
        """Write a step, whole or not at all; Conflict when a guard does not hold."""
        ...


# -- pure steps --------------------------------------------------------------------------------------------------


def attempt_token(task_id: str, secret: str) -> str:
    """What the agent of one attempt proves itself by; it names its task and dies with the attempt."""
    return f"ma_{task_id}.{secret}"


def hash_of(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def check_actor(name: str) -> str:
    """The name of an actor, or InvalidInput."""
    if not 1 <= len(name) <= LONGEST_ACTOR or not name.isprintable() or name != name.strip():
        raise InvalidInput(f"an actor's name has 1 to {LONGEST_ACTOR} printable characters.", field="actor")
    return name


def make(kind: Kind, name: str, who: Actor, now: int, *, by: str, root: str | None = None) -> tuple[Token, str]:
    """A new token for `who`, and its secret."""
    secret, lives = f"mw_{secrets.token_urlsafe(32)}", LIVES_SECONDS[kind]
    made = Token(
        id=new_id("k", now), kind=kind, name=name, actor=who.name, role=who.role, hash=hash_of(secret), created_at=now,
        created_by=by, expires_at=None if lives is None else now + int(lives * SECOND), root=root,
    )  # fmt: skip
    return made, secret


def create(token: Token) -> Changes:
    """Store a new token."""
    told = TokenCreated(**_about(token), for_actor=token.actor)
    return Changes(records=(token,), events=(event(told, token.created_at, actor=token.created_by),))


def revoke(token: Token, now: int, actor: str) -> Changes:
    """End a token; a second time fails the guard."""
    return Changes(updates=(_end(token, now),), events=(event(TokenRevoked(**_about(token)), now, actor=actor),))


def enter(made: Token, link: Token | None) -> Changes:
    """A browser signs in. The link it came by ends in the same step, so it works once."""
    told = event(SignedIn(**_about(made)), made.created_at, actor=made.actor)
    ends = () if link is None else (_end(link, made.created_at),)
    return Changes(updates=ends, records=(made,), events=(told,))


def _end(token: Token, now: int) -> Update:
    return Update("token", token.id, {"revoked_at": now}, {"revoked_at": None})


def _about(token: Token) -> dict[str, Any]:
    return {"token_id": token.id, "name": token.name, "role": token.role, "token_kind": token.kind}


def _root(token: Token | None) -> str | None:
    return None if token is None else token.root or token.id


# -- the service -------------------------------------------------------------------------------------------------


class Tokens:
    """Service: makes, recognises and revokes tokens."""

    def __init__(self, store: TokenStore, clock: Clock, owner_secret: str) -> None:
        self._store = store
        self._clock = clock
        self._owner = hash_of(owner_secret)
        self._noting: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Wait until what was noted is written."""
        await asyncio.gather(*self._noting.values(), return_exceptions=True)

    async def list(self) -> list[Token]:
        """Tokens of programs and browsers, newest first; ended ones for a week."""
        return [one for one in await self._store.list_tokens() if one.kind != "link"]

    async def create(self, name: str, role: str, *, actor: str | None = None, by: Actor) -> tuple[Token, str]:
        """A token for a program, and its secret, which is not kept. Conflict when a live one has that name."""
        if not NAME.fullmatch(name):
            raise InvalidInput("a token's name has 1 to 63 letters, digits and . _ - signs.", field="name")
        if role not in ROLES:
            raise InvalidInput(f"a role is one of: {', '.join(ROLES)}.", field="role")
        who = Actor(check_actor(name if actor is None else actor), role)
        made, secret = make("api", name, who, await self._tidy(), by=by.name)
        try:
            await self._store.apply(create(made))
        except Conflict as conflict:
            raise Conflict(f"a token is called {name!r} already; revoke that, or choose another name.") from conflict
        return made, secret

    async def revoke(self, key: str, *, by: Actor) -> Token:
        """End a token, by its id or an api token's name. Browsers that signed in with it end, too."""
        found = await self._store.get_token(key)
        if found is None:
            raise NotFound("token", key)
        try:
            await self._store.apply(revoke(found, self._clock.now(), by.name))
        except Conflict as conflict:
            raise Conflict(f"token {found.id} ({found.name}) was revoked before.") from conflict
        return await self._store.get_token(found.id) or found

    async def link(self, who: Actor) -> tuple[Token, str]:
        """A way in for one browser, for the same actor with the same role, and its code."""
        if who.way == "proxy":
            raise Forbidden("whom a proxy signs in gets no links; open the proxy's address in the browser.")
        now = await self._tidy()
        await self._check_room(who, now)
        made, code = make("link", "link", who, now, by=who.name, root=_root(who.token))
        await self._store.apply(create(made))
        return made, code

    async def sign_in(self, *, code: str | None = None, token: str | None = None) -> tuple[Token, str]:
        """A browser's token and its secret, for the code of a link or for the secret of a program's token."""
        link = None if code is None else await self._known(code, "link")
        who = None if token is None else await self.bearer(token)
        if link is not None:
            who = Actor(link.actor, link.role)
        if who is None:
            raise Unauthorized("this link or token is not valid: it was used, revoked or has expired; get a new one.")
        now = await self._tidy()
        if link is None:
            await self._check_room(who, now)
        root = _root(who.token) if link is None else link.root
        made, secret = make("browser", "browser", who, now, by=who.name, root=root)
        try:
            await self._store.apply(enter(made, link))
        except Conflict as conflict:
            raise Unauthorized("this link was used already; get a new one with `midwatch open`.") from conflict
        return made, secret

    async def bearer(self, secret: str) -> Actor | None:
        """Whose secret this is: the owner's, or that of a program's token that holds."""
        if secrets.compare_digest(hash_of(secret), self._owner):
            return OWNER
        if secret.startswith("ma_"):
            return await self._agent(secret)
        found = await self._known(secret, "api")
        return None if found is None else Actor(found.actor, found.role, "bearer", found)

    async def _agent(self, secret: str) -> Actor | None:
        """The agent of an attempt that runs now, as whoever its task belongs to."""
        task = await self._store.get_task(secret.removeprefix("ma_").partition(".")[0])
        if task is None or task.status != "running" or task.token_hash is None:
            return None
        if not secrets.compare_digest(hash_of(secret), task.token_hash):
            return None
        return Actor(task.creator or "owner", "viewer", "attempt", task=task)

    async def cookie(self, secret: str) -> Actor | None:
        """Whose browser this is, if its token holds."""
        found = await self._known(secret, "browser")
        return None if found is None else Actor(found.actor, found.role, "cookie", found)

    async def still_holds(self, who: Actor) -> bool:
        """Whether what proved somebody has been neither revoked nor outlived."""
        if who.task is not None:
            now = await self._store.get_task(who.task.id)
            return now is not None and now.status == "running" and now.attempt == who.task.attempt
        if who.token is None:
            return True
        found = await self._store.token_of(who.token.hash, self._clock.now())
        return found is not None and found.holds(self._clock.now())

    async def _known(self, secret: str, kind: Kind) -> Token | None:
        now = self._clock.now()
        found = await self._store.token_of(hash_of(secret), now)
        if found is None or found.kind != kind or not found.holds(now):
            return None
        self._note(found)
        return found

    async def _tidy(self) -> int:
        """Remove what ended long ago; the time."""
        now = self._clock.now()
        await self._store.prune_tokens(now - int(KEPT_SECONDS * SECOND))
        return now

    async def _check_room(self, who: Actor, now: int) -> None:
        if await self._store.count_tokens(who.name, now) >= MOST_OF_AN_ACTOR:
            raise LimitReached(f"{who.name} is signed in {MOST_OF_AN_ACTOR} times; sign out somewhere first.")

    def _note(self, token: Token) -> None:
        """Have the use written, beside what the caller is here for."""
        now = self._clock.now()
        if token.kind == "link" or token.id in self._noting or now - (token.last_used_at or 0) < NOTED_SECONDS * SECOND:
            return
        task = asyncio.get_running_loop().create_task(self._write_use(token, now))
        self._noting[token.id] = task
        task.add_done_callback(lambda _: self._noting.pop(token.id, None))

    async def _write_use(self, token: Token, now: int) -> None:
        guard = {"last_used_at": token.last_used_at}
        try:
            await self._store.apply(Changes(updates=(Update("token", token.id, {"last_used_at": now}, guard),)))
        except Conflict:
            pass  # another server noted it
        except Exception as problem:
            log.warning("the use of token %s was not noted: %s", token.id, problem)
