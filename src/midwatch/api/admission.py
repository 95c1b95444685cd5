"""Admission: check the host, the origin and the proxy of a request before the token is checked."""

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
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@?#\\]+)(:[0-9]{1,5})?", re.ASCII)
COOKIE = "midwatch"
AGENTAPI = re.compile(r"/sessions/.*/agentapi(/|$)", re.DOTALL)

Address = IPv4Address | IPv6Address


class Call(NamedTuple):
    """The parts of a request that admission checks.

    If a header is sent twice, its entry in `headers` holds both values, so that it is never accepted.
    """

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
        """Return whether the method of the request only reads."""
        return self.method in SAFE_METHODS

    @property
    def is_for_api(self) -> bool:
        """Return whether the request is for the API, not for a file of the console."""
        return self.path == "/api" or self.path.startswith("/api/") or self.is_for_agentapi

    @property
    def is_for_agentapi(self) -> bool:
        """Return whether the request is for the agentapi routes of a session. These routes check bodies themselves."""
        return AGENTAPI.match(self.path) is not None

    @property
    def from_own_page(self) -> bool:
        """Return whether the browser reports that a page of this server sent the request."""
        return self.origin == self.own_origin or self.site == "same-origin"

    def header(self, name: bytes) -> str:
        """Return the value of a header, or an empty text."""
        return self.headers.get(name, b"").decode("latin-1")

    def cookie(self) -> str | None:
        """Return the secret in the cookie of a browser, or None if the request has no such cookie."""
        for pair in self.header(b"cookie").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE:
                return value
        return None

    def bearer(self) -> str | None:
        """Return the secret in the header `authorization`, or None if the request has no bearer token."""
        scheme, _, secret = self.header(b"authorization").partition(" ")
        return secret.strip() if scheme.lower() == "bearer" else None


class Admission:
    """The rules of one server: its host names, the origins it allows, the proxies it trusts."""

    def __init__(self, settings: Settings, more_hosts: Collection[str] = ()) -> None:
        named = {"localhost", socket.gethostname().lower(), *settings.hosts, *more_hosts}
        self._hosts = frozenset(named if parse_address(settings.host) else {*named, settings.host.lower()})
        self._exposed = settings.expose
        self._origins = frozenset(settings.origins)
        self._proxies = [ip_network(address, strict=False) for address in settings.proxy_addresses]
        self._proxy_header = (settings.proxy_header or "").lower().encode()
        self._proxy_role = settings.proxy_role

    def read_call(self, scope: Scope) -> Call:
        """Return the parts of a request that admission checks."""
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
        """Raise WrongHost if the host is not a name of this server, ForeignOrigin if the origin is not allowed."""
        if not self._is_ours(call.host):
            raise WrongHost(
                f"{call.host[:100]!r} is not a name of this server; to allow the name, add it to the setting `hosts`."
            )
        if call.origin and call.origin != call.own_origin and call.origin not in self._origins:
            raise ForeignOrigin(
                f"pages of {call.origin[:100]!r} may not use this server; to allow it, add the site to `origins`."
            )
        if not call.origin and call.is_for_api and call.site in ("cross-site", "same-site"):
            raise ForeignOrigin("pages of this site may not use this server; to allow it, add the site to `origins`.")

    def is_listed(self, origin: str) -> bool:
        """Return whether the setting `origins` allows pages of this origin to use the API."""
        return origin in self._origins

    def find_proxy_actor(self, call: Call) -> Actor | None:
        """Return the actor that a trusted proxy names. Return None without a trusted proxy or with an invalid name."""
        if not self._proxy_header or self._proxy_header not in call.headers or not self._trusts(call.peer):
            return None
        try:
            name = call.headers[self._proxy_header].decode().strip()
            return Actor(check_actor(name), self._proxy_role, "proxy")
        except (UnicodeDecodeError, InvalidInput):
            return None

    def _is_ours(self, host: str) -> bool:
        match = HOST.fullmatch(host)
        if match is None:
            return False
        address = parse_address(match[1].strip("[]"))
        if address is None or match[1] in self._hosts:
            return match[1] in self._hosts
        return address.is_loopback or self._exposed or str(address) in self._hosts

    def _trusts(self, peer: str) -> bool:
        address = parse_address(peer)
        return address is not None and any(address in network for network in self._proxies)


def parse_address(text: str) -> Address | None:
    """Return the text as an IP address, or None if it is a name."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
