"""Refusals of requests that reach no route: the check of a head, the reply, and the limit of the log."""

from __future__ import annotations

import time
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from midwatch.api.reply import describe_problem, to_json

SINGLE = frozenset(
    (b"host", b"authorization", b"origin", b"content-type", b"transfer-encoding", b"expect", b"last-event-id")
)
"""Headers that mean one thing to one reader and another to the next when they come twice."""
MINUTE = 60.0
MOST_LOGGED = 100


class Refusal(NamedTuple):
    """The reply to a peer, which is also logged."""

    status: int
    code: str
    detail: str

    def encode(self) -> bytes:
        """Return the whole reply, after which the connection ends."""
        body = describe_problem(*self)
        content = to_json(body)
        wait = "retry-after: 1\r\n" if self.status == 503 else ""
        head = (
            f"HTTP/1.1 {self.status} {body['title']}\r\n{wait}"
            "content-type: application/problem+json\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + content


LARGE = Refusal(431, "headers_too_large", "the request line and the headers are too large or too many; send less.")
LATE = Refusal(408, "request_timeout", "the request did not arrive in time; send it again, without pauses.")
CROWDED = Refusal(
    503, "too_many_connections", "too many connections are open; try again soon, or raise max_connections."
)
UNREAD = Refusal(408, "reply_not_read", "the reply was not read in time.")
EARLY = Refusal(400, "sent_ahead", "more was sent before the reply; the connection ends with that reply.")


def refuse_malformed(why: str, status: int = 400) -> Refusal:
    """Return the refusal of a request that can be read in two ways, or in none."""
    return Refusal(status, "malformed_request", f"the request is not well-formed HTTP/1.1: {why}.")


class LogLimiter:
    """Limits what is logged: each key once a minute, and 100 keys a minute at most."""

    def __init__(self) -> None:
        self._since = -MINUTE
        self._seen: set[tuple[str, str]] = set()

    def admits(self, peer: str, code: str) -> bool:
        """Return whether to log this now."""
        if time.monotonic() - self._since >= MINUTE:
            self._since, self._seen = time.monotonic(), set()
        if (peer, code) in self._seen or len(self._seen) >= MOST_LOGGED:
            return False
        self._seen.add((peer, code))
        return True


def check_head(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> Refusal | None:
    """Return what is wrong with a head that the parser let pass, or None."""
    if version not in ("1.0", "1.1"):
        return refuse_malformed("its version is not 1.1")
    if not target.startswith(b"/"):
        return refuse_malformed("its target does not begin with a slash")
    if not _is_readable(target):
        return refuse_malformed("its target is not UTF-8, or has control characters")
    seen: set[bytes] = set()
    for name, value in headers:
        if name in seen and name in SINGLE:
            return refuse_malformed(f"the header {name.decode()} comes twice")
        seen.add(name)
        if not _is_text(value):
            return refuse_malformed("a header is not UTF-8")
        if name == b"transfer-encoding" and (version == "1.0" or value.lower() != b"chunked"):
            return refuse_malformed("its transfer encoding is not chunked")
        if name == b"expect" and value.lower() != b"100-continue":
            return refuse_malformed("it expects something else than 100-continue", 417)
    if version == "1.1" and b"host" not in seen:
        return refuse_malformed("the header host is missing")
    return None


def _is_readable(target: bytes) -> bool:
    """Return whether a target is text without control characters; a query may have line breaks, but no NUL."""
    path, _, query = target.partition(b"?")
    path, query = unquote_to_bytes(path), unquote_to_bytes(query)
    return _is_text(path) and _is_text(query) and b"\0" not in query and min(path) >= 0x20 and 0x7F not in path


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
