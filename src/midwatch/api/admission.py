"""Admission: check the host, the origin and the proxy of a request before anything else looks at it."""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple

from starlette.types import Scope

from midwatch.base.errors import ForeignOrigin, InvalidInput, WrongHost
from midwatch.desk.config import Settings
from midwatch.domain.identity import Actor, check_actor

SAFE_METHODS = frozenset({"GET", "HEAD"})
OPEN_PATHS = frozenset({"/api/v1/health", "/api/v1/ready", "/api/v1/sign-in"})
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@?#\\]+)(:[0-9]{1,5})?", re.ASCII)
COOKIE = "midwatch"
AGENTAPI = re.compile(r"/sessions/.*/agentapi(/|$)", re.DOTALL)

Address = IPv4Address | IPv6Address


class Call(NamedTuple):
    """A request, as far as the door looks at it. A header that came twice has both values, so it matches nothing."""

    method: str
    path: str
    host: str
    origin: str
    own_origin: str
    site: str
    peer: str
    secure: bool
    headers: dict[bytes, bytes]

    @property
    def safe(self) -> bool:
        """Whether it only looks."""
        return self.method in SAFE_METHODS

    @property
    def of_api(self) -> bool:
        """Whether it speaks to the interface, not to the console's files. Paths are compared as the router does."""
        return self.path == "/api" or self.path.startswith("/api/") or self.of_agentapi

    @property
    def of_agentapi(self) -> bool:
        """Whether it speaks to a session as clients of agentapi do; that surface reads bodies in its own way."""
        return AGENTAPI.match(self.path) is not None

    @property
    def open(self) -> bool:
        """Whether it needs no proof of who it is: health, sign-in, and the files of the console."""
        return self.path in OPEN_PATHS if self.of_api else self.safe

    @property
    def from_own_page(self) -> bool:
        """Whether a browser says that a page of this very server sent it."""
        return self.origin == self.own_origin or self.site == "same-origin"

    def header(self, name: bytes) -> str:
        """A header's value, or nothing."""
        return self.headers.get(name, b"").decode("latin-1")

    def cookie(self) -> str | None:
        """The secret that a browser carries."""
        for pair in self.header(b"cookie").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE:
                return value
        return None

    def bearer(self) -> str | None:
        """The secret that a program carries."""
        scheme, _, secret = self.header(b"authorization").partition(" ")
        return secret.strip() if scheme.lower() == "bearer" else None


class Admission:
    """The rules of one server: the names it has, whose pages may ask, which proxies are believed."""

    def __init__(self, settings: Settings, more_hosts: Collection[str] = ()) -> None:
        named = {"localhost", socket.gethostname().lower(), *settings.hosts, *more_hosts}
        self._hosts = frozenset(named if literal(settings.host) else {*named, settings.host.lower()})
        self._exposed = settings.expose
        self._origins = frozenset(settings.origins)
        self._proxies = [ip_network(one, strict=False) for one in settings.proxy_addresses]
        self._proxy_header = (settings.proxy_header or "").lower().encode()
        self._proxy_role = settings.proxy_role

    def look(self, scope: Scope) -> Call:
        """What the request says."""
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = headers[name] + b"\n" + value if name in headers else value
        peer = (scope.get("client") or ("",))[0]
        behind_https = headers.get(b"x-forwarded-proto", b"").lower() == b"https" and self._trusts(peer)
        secure = scope.get("scheme") == "https" or behind_https
        host = headers.get(b"host", b"").decode("latin-1").lower()
        return Call(
            method=scope["method"],
            path=scope["path"],
            host=host,
            origin=headers.get(b"origin", b"").decode("latin-1").lower(),
            own_origin=f"{'https' if secure else 'http'}://{host}",
            site=headers.get(b"sec-fetch-site", b"").decode("latin-1").lower(),
            peer=peer,
            secure=secure,
            headers=headers,
        )

    def check(self, call: Call) -> None:
        """WrongHost or ForeignOrigin, when it comes from where nobody should."""
        if not self._is_ours(call.host):
            raise WrongHost(
                f"this server is not called {call.host[:100]!r}; if it is, add that name to the setting `hosts`."
            )
        if call.origin and call.origin != call.own_origin and call.origin not in self._origins:
            raise ForeignOrigin(
                f"a page of {call.origin[:100]!r} may not use this server; if it may, add it to the setting `origins`."
            )
        if not call.origin and call.of_api and call.site in ("cross-site", "same-site"):
            raise ForeignOrigin("a page of another site may not use this server; the setting `origins` lists those.")

    def is_listed(self, origin: str) -> bool:
        """Whether pages of that site may use the interface."""
        return origin in self._origins

    def named_by_proxy(self, call: Call) -> Actor | None:
        """Whom a trusted proxy names; nobody when somebody else does, or it names nobody in particular."""
        if not self._proxy_header or self._proxy_header not in call.headers or not self._trusts(call.peer):
            return None
        try:
            said = call.headers[self._proxy_header].decode().strip()
            return Actor(check_actor(said), self._proxy_role, "proxy")
        except (UnicodeDecodeError, InvalidInput):
            return None

    def _is_ours(self, host: str) -> bool:
        found = HOST.fullmatch(host)
        if found is None:
            return False
        address = literal(found[1].strip("[]"))
        if address is None or found[1] in self._hosts:
            return found[1] in self._hosts
        return address.is_loopback or self._exposed or str(address) in self._hosts

    def _trusts(self, peer: str) -> bool:
        address = literal(peer)
        return address is not None and any(address in one for one in self._proxies)


def literal(text: str) -> Address | None:
    """The address that a text is, or None when it is a name."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
