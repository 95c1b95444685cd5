"""The token service: sign in, create and revoke tokens, recognise who speaks."""

from __future__ import annotations

import asyncio
import logging
import secrets

from midwatch.base.clock import SECOND, Clock
from midwatch.base.errors import Conflict, Forbidden, InvalidInput, LimitReached, NotFound, Unauthorized
from midwatch.domain import identity
from midwatch.domain.changes import Changes, Update
from midwatch.domain.identity import OWNER, Actor, Kind, Token, TokenStore, hash_of

log = logging.getLogger("midwatch.identity")


class Tokens:
    """Service: makes, recognises and revokes tokens."""

    def __init__(
        self, store: TokenStore, clock: Clock, owner_secret: str, *, most_of_actor: int = identity.MOST_OF_AN_ACTOR
    ) -> None:
        self._store = store
        self._most_of_actor = most_of_actor
        self._clock = clock
        self._owner = hash_of(owner_secret)
        self._noting: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Wait until what was noted is written."""
        await asyncio.gather(*self._noting.values(), return_exceptions=True)

    async def list(self, *, by: Actor = OWNER) -> list[Token]:
        """Return tokens of programs and browsers, newest first; ended ones for a week. For owners only."""
        check_owner(by)
        return [one for one in await self._store.list_tokens() if one.kind != "link"]

    async def create(self, name: str, role: str, *, actor: str | None = None, by: Actor) -> tuple[Token, str]:
        """A token for a program, and its secret, which is not kept. Conflict when a live one has that name. For owners
        only."""
        check_owner(by)
        if not identity.NAME.fullmatch(name):
            raise InvalidInput("a token's name has 1 to 63 letters, digits and . _ - signs.", field="name")
        if role not in identity.ROLES:
            raise InvalidInput(f"a role is one of: {', '.join(identity.ROLES)}.", field="role")
        who = Actor(identity.check_actor(name if actor is None else actor), role)
        made, secret = identity.make("api", name, who, await self._tidy(), by=by.name)
        try:
            await self._store.apply(identity.create(made))
        except Conflict as conflict:
            raise Conflict(f"a token is called {name!r} already; revoke that, or choose another name.") from conflict
        return made, secret

    async def revoke(self, key: str, *, by: Actor) -> Token:
        """End a token, by its id or an api token's name. Browsers that signed in with it end, too. For owners only."""
        check_owner(by)
        return await self._revoke(key, by)

    async def sign_out(self, who: Actor) -> None:
        """End the token of the browser that speaks, if it is a browser."""
        if who.way == "cookie" and who.token is not None:
            await self._revoke(who.token.id, who)

    async def _revoke(self, key: str, by: Actor) -> Token:
        found = await self._store.get_token(key)
        if found is None:
            raise NotFound("token", key)
        try:
            await self._store.apply(identity.revoke(found, self._clock.now(), by.name))
        except Conflict as conflict:
            raise Conflict(f"token {found.id} ({found.name}) was revoked before.") from conflict
        return await self._store.get_token(found.id) or found

    async def link(self, who: Actor) -> tuple[Token, str]:
        """A way in for one browser, for the same actor with the same role, and its code."""
        if who.way == "proxy":
            raise Forbidden("whom a proxy signs in gets no links; open the proxy's address in the browser.")
        now = await self._tidy()
        await self._check_room(who, now)
        made, code = identity.make("link", "link", who, now, by=who.name, root=identity.root_of(who.token))
        await self._store.apply(identity.create(made))
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
        root = identity.root_of(who.token) if link is None else link.root
        made, secret = identity.make("browser", "browser", who, now, by=who.name, root=root)
        try:
            await self._store.apply(identity.enter(made, link))
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
        found = await self._store.find_token(who.token.hash, self._clock.now())
        return found is not None and found.holds(self._clock.now())

    async def _known(self, secret: str, kind: Kind) -> Token | None:
        now = self._clock.now()
        found = await self._store.find_token(hash_of(secret), now)
        if found is None or found.kind != kind or not found.holds(now):
            return None
        self._note(found)
        return found

    async def _tidy(self) -> int:
        """Remove what ended long ago; the time."""
        now = self._clock.now()
        await self._store.prune_tokens(now - int(identity.KEPT_SECONDS * SECOND))
        return now

    async def _check_room(self, who: Actor, now: int) -> None:
        if await self._store.count_tokens(who.name, now) >= self._most_of_actor:
            raise LimitReached(f"{who.name} is signed in {self._most_of_actor} times; sign out somewhere first.")

    def _note(self, token: Token) -> None:
        """Have the use written, beside what the caller is here for."""
        now = self._clock.now()
        lately = now - (token.last_used_at or 0) < identity.NOTED_SECONDS * SECOND
        if lately or token.kind == "link" or token.id in self._noting:
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


def check_owner(actor: Actor) -> None:
    """Raise Forbidden unless the actor is an owner."""
    if actor.role != "owner":
        raise Forbidden(f"{actor.name} is {actor.role}; only an owner may do this.")
