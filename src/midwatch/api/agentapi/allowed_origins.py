"""Access to a server without tokens: the host names of the server, and the sites whose pages may read its replies."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midwatch.api.agentapi.replies import reply_text
from midwatch.base.errors import InvalidInput

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "OPTIONS"})
REQUEST_HEADERS = frozenset({"accept", "authorization", "content-type", "x-csrf-token", "origin"})
MAX_AGE = "300"
HOSTS = ("localhost", "127.0.0.1", "[::1]")
FOREIGN = "Pages of this site may not use this server; to allow it, add the site to --allowed-origins.\n"
ORIGINS = ("http://localhost:3284", "http://localhost:3000", "http://localhost:3001")


def check_hosts(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the host names of a server in lower case and without brackets. Raise InvalidInput if one is not valid."""
    return _check_entries("allowed hosts", hosts, _parse_host)


def check_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Return the allowed sites in the form `scheme://host[:port]`. Raise InvalidInput if one is not valid."""
    return _check_entries("allowed origins", origins, _parse_origin)


def _check_entries(option: str, entries: Sequence[str], parse: Callable[[str], str]) -> tuple[str, ...]:
    if "*" in entries:
        return ("*",)
    try:
        if not entries or "" in entries:
            raise ValueError("the list must not be empty")
        for entry in entries:
            if re.search(r"\s", entry):
                raise ValueError(f"'{entry}' contains whitespace characters, which are not allowed")
            if "," in entry:
                raise ValueError(f"'{entry}' contains comma characters, which are not allowed")
        return tuple(map(parse, entries))
    except ValueError as problem:
        raise InvalidInput(f"{option}: {problem}", field=option.replace(" ", "_")) from None


def _parse_host(host: str) -> str:
    if host.startswith(("http://", "https://")):
        raise ValueError(f"'{host}' must not include http:// or https://")
    name = host.strip("[]") if host.startswith("[") and host.endswith("]") else host
    if ":" in host and name == host:
        raise ValueError(f"'{host}' must not include a port")
    return name.lower()


def _parse_origin(origin: str) -> str:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"'{origin}' must be like http://host:port")
    if origin.count("*") > 1:
        raise ValueError(f"'{origin}' has more than one wildcard")
    return f"{parts.scheme}://{parts.netloc}".lower()


class Rules(NamedTuple):
    """The hosts and origins that a server allows."""

    hosts: tuple[str, ...]
    origins: tuple[str, ...]

    def allows_host(self, host: str) -> bool:
        """Return whether a host header holds an allowed host name. The header may contain a port."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        return "*" in self.hosts or name.lower() in self.hosts

    def allows_origin(self, origin: str) -> bool:
        """Return whether pages of this site may read replies of the server."""
        patterns = (re.escape(allowed).replace(r"\*", ".*") for allowed in self.origins)
        return any(re.fullmatch(pattern, origin.lower(), re.DOTALL) for pattern in patterns)

    @property
    def frames(self) -> str:
        """Return the sites that may show a page of this server in a frame."""
        return "*" if "*" in self.origins else " ".join(("'self'", *self.origins))


class Gate:
    """Middleware that checks the host and the origin of each request before a route gets it."""

    def __init__(self, app: ASGIApp, rules: Rules, context: Mapping[str, Any]) -> None:
        """Set the rules. `context` is added to the ASGI scope of each allowed request."""
        self._app = app
        self._rules = rules
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        if not self._rules.allows_host(headers.get("host", "")):
            reason = f"Invalid host header. Allowed hosts: {', '.join(self._rules.hosts)}\n"
            await reply_text(reason, 400)(scope, receive, send)
            return
        origin = headers.get("origin", "")
        allowed = bool(origin) and self._rules.allows_origin(origin)
        if not allowed and _is_foreign(scope["method"], origin, headers):
            await reply_text(FOREIGN, 403)(scope, receive, send)
            return
        method = headers.get("access-control-request-method")
        if scope["method"] == "OPTIONS" and method is not None:
            await self._answer_preflight(origin, method, headers)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                reply_headers = MutableHeaders(scope=message)
                reply_headers.append("vary", "Origin")
                if allowed:
                    reply_headers.update({**self._allow(origin), "access-control-expose-headers": "Link"})
            await send(message)

        await self._app({**scope, **self._context}, receive, send_with_headers)

    def _allow(self, origin: str) -> dict[str, str]:
        origins = "*" if "*" in self._rules.origins else origin
        return {"access-control-allow-origin": origins, "access-control-allow-credentials": "true"}

    def _answer_preflight(self, origin: str, method: str, headers: Headers) -> Response:
        reply = Response(status_code=200)
        for name in ("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"):
            reply.headers.append("vary", name)
        entries = headers.get("access-control-request-headers", "").split(",")
        names = [name.strip() for name in entries if name.strip()]
        if not origin or not self._rules.allows_origin(origin) or method.upper() not in METHODS:
            return reply
        if any(name.lower() not in REQUEST_HEADERS for name in names):
            return reply
        reply.headers.update({**self._allow(origin), "access-control-allow-methods": method.upper()})
        if names:
            reply.headers["access-control-allow-headers"] = ", ".join(name.title() for name in names)
        reply.headers["access-control-max-age"] = MAX_AGE
        return reply


def _is_foreign(method: str, origin: str, headers: Headers) -> bool:
    """Return whether a page of another site has sent the request.

    Without an origin, a page of another site may only follow a link to this server, or show it in a frame.
    """
    site = headers.get("sec-fetch-site")
    if site in ("cross-site", "same-site"):
        return bool(origin) or method not in ("GET", "HEAD")
    own = headers.get("host", "").lower()
    return bool(origin) and site != "same-origin" and origin.lower() not in (f"http://{own}", f"https://{own}")
