"""Who may ask a server that needs no token: the names it answers to, and the pages that may read its replies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midwatch.api.agentapi.replies import text_reply
from midwatch.base.errors import InvalidInput

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "OPTIONS"})
REQUEST_HEADERS = frozenset({"accept", "authorization", "content-type", "x-csrf-token", "origin"})
MAX_AGE = "300"
HOSTS = ("localhost", "127.0.0.1", "[::1]")
FOREIGN = "Pages of another site may not use this server; --allowed-origins lists those that may.\n"
ORIGINS = ("http://localhost:3284", "http://localhost:3000", "http://localhost:3001")


def checked_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    """The names a server answers to, in the form they are compared in, or InvalidInput."""
    if "*" in hosts:
        return ("*",)
    _check(hosts, "allowed hosts")
    found: list[str] = []
    for host in hosts:
        if host.startswith(("http://", "https://")):
            raise InvalidInput(f"allowed hosts: '{host}' must not include http:// or https://", field="allowed_hosts")
        bare = host.strip("[]") if host.startswith("[") and host.endswith("]") else host
        if ":" in host and bare == host:
            raise InvalidInput(f"allowed hosts: '{host}' must not include a port", field="allowed_hosts")
        found.append(bare.lower())
    return tuple(found)


def checked_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """The sites whose pages may read replies, as scheme://host[:port], or InvalidInput."""
    if "*" in origins:
        return ("*",)
    _check(origins, "allowed origins")
    found: list[str] = []
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidInput(f"allowed origins: '{origin}' must be like http://host:port", field="allowed_origins")
        if origin.count("*") > 1:
            raise InvalidInput(f"allowed origins: '{origin}' has more than one wildcard", field="allowed_origins")
        found.append(f"{parts.scheme}://{parts.netloc}".lower())
    return tuple(found)


def _check(entries: Sequence[str], what: str) -> None:
    field = what.replace(" ", "_")
    if not entries:
        raise InvalidInput(f"{what}: the list must not be empty", field=field)
    for entry in entries:
        if re.search(r"\s", entry):
            raise InvalidInput(f"{what}: '{entry}' contains whitespace characters, which are not allowed", field=field)
        if "," in entry:
            raise InvalidInput(f"{what}: '{entry}' contains comma characters, which are not allowed", field=field)
        if not entry:
            raise InvalidInput(f"{what}: the list must not be empty", field=field)


def hostname(host: str) -> str:
    """The name in a host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


class Rules(NamedTuple):
    """What a server was told to allow."""

    hosts: tuple[str, ...]
    origins: tuple[str, ...]

    def answers_to(self, host: str) -> bool:
        """Whether it is called so."""
        return "*" in self.hosts or hostname(host) in self.hosts

    def allows(self, origin: str) -> bool:
        """Whether pages of that site may read replies."""
        if "*" in self.origins:
            return True
        origin = origin.lower()
        for allowed in self.origins:
            head, star, tail = allowed.partition("*")
            if origin == allowed or (
                star and len(origin) >= len(head) + len(tail) and origin.startswith(head) and origin.endswith(tail)
            ):
                return True
        return False

    @property
    def frames(self) -> str:
        """Which sites may show a page of this one inside theirs."""
        return "*" if "*" in self.origins else " ".join(("'self'", *self.origins))


class Gate:
    """Lets requests through to the routes: first the host, then what a browser asks about other sites."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        if not self._rules.answers_to(headers.get("host", "")):
            refused = f"Invalid host header. Allowed hosts: {', '.join(self._rules.hosts)}\n"
            await text_reply(refused, 400)(scope, receive, send)
            return
        origin = headers.get("origin", "")
        wanted = headers.get("access-control-request-method")
        if scope["method"] == "OPTIONS" and wanted is not None:
            await self._preflight(origin, wanted, headers)(scope, receive, send)
            return
        allowed = bool(origin) and self._rules.allows(origin)
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign and not allowed and scope["method"] not in ("GET", "HEAD"):
            await text_reply(FOREIGN, 403)(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = MutableHeaders(scope=message)
                given.append("vary", "Origin")
                if allowed:
                    given.update({**self._granted(origin), "access-control-expose-headers": "Link"})
            await send(message)

        await self._app(scope, receive, dressed)

    def _granted(self, origin: str) -> dict[str, str]:
        shown = "*" if "*" in self._rules.origins else origin
        return {"access-control-allow-origin": shown, "access-control-allow-credentials": "true"}

    def _preflight(self, origin: str, method: str, headers: Headers) -> Response:
        reply = Response(status_code=200)
        for name in ("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"):
            reply.headers.append("vary", name)
        asked = [name.strip() for name in headers.get("access-control-request-headers", "").split(",") if name.strip()]
        if not origin or not self._rules.allows(origin) or method.upper() not in METHODS:
            return reply
        if any(name.lower() not in REQUEST_HEADERS for name in asked):
            return reply
        reply.headers.update({**self._granted(origin), "access-control-allow-methods": method.upper()})
        if asked:
            reply.headers["access-control-allow-headers"] = ", ".join(name.title() for name in asked)
        reply.headers["access-control-max-age"] = MAX_AGE
        return reply
