"""The token service: create and revoke tokens, sign in browsers, and find the actor that a secret belongs to."""

from __future__ import annotations

import asyncio
import logging
import secrets

from midwatch.base.clock import SECOND, Clock
from midwatch.base.errors import Conflict, Forbidden, InvalidInput, LimitReached, Unauthorized
from midwatch.domain import identity
from midwatch.domain.changes import Changes, Update
from midwatch.domain.identity import OWNER, Actor, Kind, Token, TokenStore, hash_of
from midwatch.services.authorization import authorize
from midwatch.services.records import require

log = logging.getLogger("midwatch.identity")


class Tokens:
    """Service: creates, checks and revokes tokens."""

    def __init__(
        self, store: TokenStore, clock: Clock, owner_secret: str, *, most_of_actor: int = identity.MOST_OF_AN_ACTOR
    ) -> None:
        self._store = store
        self._most_of_actor = most_of_actor
        self._clock = clock
        self._owner = hash_of(owner_secret)
        self._writing: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Wait until the time of the last use of each token is written."""
        await asyncio.gather(*self._writing.values(), return_exceptions=True)

    async def list(self, *, by: Actor = OWNER) -> list[Token]:
        """Return the tokens of programs and browsers, newest first. Only an owner may do this.

        A token that was revoked or has expired is listed for a week.
        """
        authorize(by, "administer")
        return await self._store.list_tokens()

    async def create(self, name: str, role: str, *, actor: str | None = None, by: Actor) -> tuple[Token, str]:
        """Create a token for a program. Return the token and its secret, which is not stored.

        Only an owner may do this. Raise Conflict if a valid token has the same name.
        """
        authorize(by, "administer")
        if not identity.NAME.fullmatch(name):
            raise InvalidInput(
                "a token's name must have 1 to 63 letters, digits, dots, underscores or hyphens.", field="name"
            )
        if role not in identity.ROLES:
            raise InvalidInput(f"the role must be one of: {', '.join(identity.ROLES)}.", field="role")
        who = Actor(identity.check_actor(name if actor is None else actor), role)
        created, secret = identity.make("api", name, who, await self._tidy(), by=by.name)
        try:
            await self._store.apply(identity.create(created))
        except Conflict as conflict:
            raise Conflict(f"there is a token {name!r} already; revoke it, or choose another name.") from conflict
        return created, secret

    async def revoke(self, key: str, *, by: Actor) -> Token:
        """Revoke the token with this id or name, and sign out the browsers that signed in with the token.

        Only an owner may do this.
        """
        authorize(by, "administer")
        return await self._revoke(key, by)

    async def sign_out(self, who: Actor) -> None:
        """Revoke the token with which the actor's browser is signed in. Do nothing if the actor uses no browser."""
        authorize(who, "sign_in")
        if who.way == "cookie" and who.token is not None:
            await self._revoke(who.token.id, who)

    async def _revoke(self, key: str, by: Actor) -> Token:
        token = require(await self._store.get_token(key), "token", key)
        try:
            await self._store.apply(identity.revoke(token, self._clock.now(), by.name))
        except Conflict as conflict:
            raise Conflict(f"token {token.id} ({token.name}) is revoked already.") from conflict
        return await self._store.get_token(token.id) or token

    async def link(self, who: Actor) -> tuple[Token, str]:
        """Create a token for a link that signs in one browser as this actor. Return the token and the link's code."""
        authorize(who, "sign_in")
        if who.way == "proxy":
            raise Forbidden("you signed in by a proxy, so there is no link; open the proxy's address in the browser.")
        now = await self._tidy()
        await self._check_room(who, now)
        created, code = identity.make("link", "link", who, now, by=who.name, root=identity.root_of(who.token))
        await self._store.apply(identity.create(created))
        return created, code

    async def sign_in(self, *, code: str | None = None, token: str | None = None) -> tuple[Token, str]:
        """Sign in a browser with the `code` of a link or the secret `token` of a program or an owner.

        Return the new token of the browser, and its secret.
        """
        link = None if code is None else await self._find_valid(code, "link")
        who = None if token is None else await self.bearer(token)
        if link is not None:
            who = Actor(link.actor, link.role)
        if who is None:
            raise Unauthorized("the link or token is invalid: it was used, revoked or has expired; get a new one.")
        authorize(who, "sign_in")
        now = await self._tidy()
        if link is None:
            await self._check_room(who, now)
        root = identity.root_of(who.token) if link is None else link.root
        created, secret = identity.make("browser", "browser", who, now, by=who.name, root=root)
        try:
            await self._store.apply(identity.enter(created, link))
        except Conflict as conflict:
            raise Unauthorized("the link was used already; get a new link with `midwatch open`.") from conflict
        return created, secret

    async def bearer(self, secret: str) -> Actor | None:
        """Return the actor that a bearer secret belongs to: an owner, a program or an agent.

        Return None if the secret is not valid.
        """
        if secrets.compare_digest(hash_of(secret), self._owner):
            return OWNER
        if secret.startswith("ma_"):
            return await self._agent(secret)
        token = await self._find_valid(secret, "api")
        return None if token is None else Actor(token.actor, token.role, "bearer", token)

    async def _agent(self, secret: str) -> Actor | None:
        """Return the actor for the secret of a running attempt, or None if the secret is not valid.

        The actor has the name of the task's creator, because the agent works for the creator.
        """
        task = await self._store.get_task(secret.removeprefix("ma_").partition(".")[0])
        if task is None or task.status != "running" or task.token_hash is None:
            return None
        if not secrets.compare_digest(hash_of(secret), task.token_hash):
            return None
        return Actor(task.creator or "owner", "attempt", "attempt", task=task)

    async def cookie(self, secret: str) -> Actor | None:
        """Return the actor that the secret in a browser's cookie belongs to, or None if the secret is not valid."""
        token = await self._find_valid(secret, "browser")
        return None if token is None else Actor(token.actor, token.role, "cookie", token)

    async def is_valid(self, who: Actor) -> bool:
        """Return whether the token of an actor is still valid, or for an agent, whether its attempt still runs."""
        if who.task is not None:
            now = await self._store.get_task(who.task.id)
            return now is not None and now.status == "running" and now.attempt == who.task.attempt
        if who.token is None:
            return True
        token = await self._store.find_token(who.token.hash, self._clock.now())
        return token is not None and token.holds(self._clock.now())

    async def _find_valid(self, secret: str, kind: Kind) -> Token | None:
        now = self._clock.now()
        token = await self._store.find_token(hash_of(secret), now)
        if token is None or token.kind != kind or not token.holds(now):
            return None
        self._record_use(token)
        return token

    async def _tidy(self) -> int:
        """Remove tokens that were revoked or expired long ago, and return the current time."""
        now = self._clock.now()
        await self._store.prune_tokens(now - int(identity.KEPT_SECONDS * SECOND))
        return now

    async def _check_room(self, who: Actor, now: int) -> None:
        if await self._store.count_tokens(who.name, now) >= self._most_of_actor:
            raise LimitReached(f"{who.name} is signed in {self._most_of_actor} times; first sign out of a browser.")

    def _record_use(self, token: Token) -> None:
        """Write the time of a token's last use in the background, unless it was written a short time ago."""
        now = self._clock.now()
        fresh = now - (token.last_used_at or 0) < identity.NOTED_SECONDS * SECOND
        if fresh or token.kind == "link" or token.id in self._writing:
            return
        task = asyncio.get_running_loop().create_task(self._write_use(token, now))
        self._writing[token.id] = task
        task.add_done_callback(lambda _: self._writing.pop(token.id, None))

    async def _write_use(self, token: Token, now: int) -> None:
        guard = {"last_used_at": token.last_used_at}
        try:
            await self._store.apply(Changes(updates=(Update("token", token.id, {"last_used_at": now}, guard),)))
        except Conflict:
            pass  # another server has written it
        except Exception as problem:
            log.warning("the last use of token %s was not written: %s", token.id, problem)
