"""Names of hosts: find them in texts, and bring them into one form, so that rules can be compared."""

from __future__ import annotations

import re
import socket
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from itertools import chain
from urllib.parse import unquote

SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}:/*+", re.IGNORECASE)
"""The beginning of an address such as https://user@example.org:8080/x. Some programs also read `https:example.org`."""
AUTHORITY_END = re.compile(r"[\s/?#]|\Z")
LOGIN_END = re.compile(r"@(?=[^\s/?#:@'\"<>()\\|;,])")
HOST = re.compile(r"\[[^\]\s]*\]|[^\s/?#:@'\"<>()\\|;,]+")
LOGIN = re.compile(r"[^\s@/:='\"]{1,64}@(\[[^\]\s]+\]|[A-Za-z0-9._-]+)")
"""A login such as git@example.org:project."""
NAME = re.compile(r"(?:[\w-]+(?:[.\u3002\uff0e\uff61][\w-]+)+|localhost)[.\u3002\uff0e\uff61]*", re.IGNORECASE)
NUMBER = re.compile(r"(?:0x[0-9a-f]+|\d+)(?:\.(?:0x[0-9a-f]+|\d+)){0,3}", re.IGNORECASE)
SMALL_NUMBER = re.compile(r"[1-9]\d{0,6}")
"""A number that is no address of a machine, such as 8080."""
CLEAR_NAME = re.compile(r"(?=.*[a-z_])[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|[0-9a-f.]*:[0-9a-f:.]*|\d+\.\d+\.\d+\.\d+")
"""A name or an address whose meaning is certain."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
IPV4_IN_IPV6 = IPv6Network("64:ff9b::/96")
"""IPv6 addresses that end with the IPv4 address that they stand for."""
CHANGED_ADDRESS = re.compile(
    r"://[^\s/]*(?:[{%\\]|\[(?![0-9a-f.]*+:[0-9a-f:.]*+\]))|\b(?:https?|ftp|wss?|ssh|git):[\\/]*\\",
    re.IGNORECASE,
)
"""An address whose host the program changes, such as `http://{a,b}.org` for curl, or reads in its own way."""
TWO_COLONS = re.compile(r"://(?:[^\s/?#]*@)?[^\s/?#\[\]:@]*:[^\s/?#:@]*:")
"""An address with two colons after the host; it may be an IPv6 address."""
DOTS = re.compile(r"[.\u3002\uff0e\uff61]")
LONGEST_TEXT = 20_000
LONGEST_LABEL = 63
"""The greatest length of a part of a host's name."""


def fold_host(host: str) -> str:
    """Return a host's name in one form: lower case, ASCII, without a final dot; a number as an address.

    An IPv6 address that stands for an IPv4 address becomes this address.
    """
    return _fold(host[:LONGEST_TEXT])


@lru_cache(2000)
def _fold(host: str) -> str:
    name = unquote(host) if "%" in host else host
    name = name.strip().strip("[]").rstrip(".\u3002\uff0e\uff61").lower()
    if ":" in name:
        return _fold_ip(name)
    if not name.isascii() and not _has_long_label(name):
        with suppress(UnicodeError):
            name = name.encode("idna").decode("ascii").lower()
    name = unicodedata.normalize("NFKC", name)
    if NUMBER.fullmatch(name):
        try:
            return socket.inet_ntoa(socket.inet_aton(name))
        except OSError:
            return name
    return name


def _fold_ip(name: str) -> str:
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return name
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(inner or address)


@lru_cache(2000)
def forms_of_host(host: str) -> frozenset[str]:
    """Return every form of a host that a rule which denies is compared with.

    All names and addresses of this machine are one host. A name with other letters than ASCII also has its older and
    its newer form, and the name as people write it.
    """
    name = fold_host(host)
    forms = {
        name,
        *_forms_of_labels(unicodedata.normalize("NFKC", host.strip().lower()).rstrip(".")),
        *_forms_of_labels(name),
    }
    address: IPv4Address | IPv6Address | None
    try:
        address = ip_address(name)
    except ValueError:
        address = None
    if isinstance(address, IPv6Address):
        inner = address.sixtofour or (address.teredo or (None, None))[1]
        if address in IPV4_IN_IPV6 or int(address) >> 32 == 0:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        forms |= {str(inner)} if inner and int(address) > 1 else set()
        address = inner if inner and int(address) > 1 else address
    here = address is not None and (address.is_loopback or address.is_unspecified)
    if here or name in LOCAL_NAMES or name.endswith(".localhost"):
        forms.update(LOOPBACK)
    return frozenset(form for form in forms if form)


def _forms_of_labels(name: str) -> Iterator[str]:
    """Yield a name with all letters, and with each label in the newer ASCII form."""
    if _has_long_label(name):
        return
    labels = DOTS.split(name)
    yield ".".join(map(_decode, labels))
    yield ".".join(label if label.isascii() else f"xn--{label.encode('punycode').decode('ascii')}" for label in labels)


def _has_long_label(name: str) -> bool:
    """Return whether a part of a name is so long that there is no such host. To convert it would take a long time."""
    return max(map(len, DOTS.split(name))) > LONGEST_LABEL


def _decode(label: str) -> str:
    if not label.startswith("xn--"):
        return label
    try:
        return label[4:].encode("ascii").decode("punycode")
    except UnicodeError:
        return label


def is_clear_host(host: str) -> bool:
    """Return whether all programs read a host's name, in its one form, alike."""
    return CLEAR_NAME.fullmatch(host) is not None


def find_hosts(text: str) -> Iterator[str]:
    """Yield the hosts of all addresses and logins in a text, in one form."""
    beginning = text[:LONGEST_TEXT]
    for found in chain(_find_addresses(beginning), (match[1] for match in LOGIN.finditer(beginning))):
        if host := fold_host(found):
            yield host


def _find_addresses(text: str) -> Iterator[str]:
    """Yield the hosts of all addresses. Ends are looked up, so that the time is short for every text."""
    ends = [end.start() for end in AUTHORITY_END.finditer(text)]
    logins = [login.end() for login in LOGIN_END.finditer(text)]
    at = 0
    while scheme := SCHEME.search(text, at):
        start = at = scheme.end()
        before = bisect_left(logins, ends[bisect_left(ends, start)])
        if host := HOST.match(text, max(start, logins[before - 1]) if before else start):
            yield host[0]
            nested = text.startswith("://", host.end())  # `view-source:https://example.org`
            at = host.start() if nested else host.end()


def has_unclear_address(text: str) -> bool:
    """Return whether a text has an address whose host cannot be read for certain."""
    return bool(CHANGED_ADDRESS.search(text[:LONGEST_TEXT]) or TWO_COLONS.search(text[:LONGEST_TEXT]))


def find_host_names(words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a command that may be the name of a host, such as `example.org` or `example.org:8080/x`."""
    for word in words:
        for part in {word, *re.split(r"[=,@]", word)}:
            name = part.removeprefix("//").partition("/")[0]
            name = f"{name.partition(']')[0]}]" if name.startswith("[") else name
            if name.count(":") > 1:
                if is_clear_host(folded := fold_host(name)):
                    yield folded
                continue
            name = name.partition(":")[0]
            folded = name if name.isascii() and "%" not in name else fold_host(name)
            number = NUMBER.fullmatch(folded) and not SMALL_NUMBER.fullmatch(folded)
            if number or NAME.fullmatch(folded) or folded in LOCAL_NAMES:
                yield fold_host(folded)
