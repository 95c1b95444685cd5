"""Requests that are refused before they get to a route: check the headers, reply, and limit the number of log lines."""

from __future__ import annotations

import time
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from midwatch.api.reply import describe_problem, to_json

SINGLE = frozenset(
    (b"host", b"authorization", b"origin", b"content-type", b"transfer-encoding", b"expect", b"last-event-id")
)
"""Headers that must not occur twice, because programs differ in which of the two values they use."""
MINUTE = 60.0
MOST_LOGGED = 100


class Refusal(NamedTuple):
    """The error reply to a refused request, which is also logged."""

    status: int
    code: str
    detail: str

    def encode(self) -> bytes:
        """Return the whole reply as bytes. Its headers announce that the connection ends."""
        body = describe_problem(*self)
        content = to_json(body)
        wait = "retry-after: 1\r\n" if self.status == 503 else ""
        head = (
            f"HTTP/1.1 {self.status} {body['title']}\r\n{wait}"
            "content-type: application/problem+json\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + content


LARGE = Refusal(431, "headers_too_large", "the request line and headers are too large or too many; send less.")
LATE = Refusal(408, "request_timeout", "the request did not arrive in time; send it again, without pauses.")
CROWDED = Refusal(
    503, "too_many_connections", "too many connections are open; try again soon, or raise `max_connections`."
)
UNREAD = Refusal(408, "reply_not_read", "the client did not read the reply in time.")
EARLY = Refusal(400, "sent_ahead", "the client sent another request too early; the connection ends after this reply.")


def refuse_malformed(why: str, status: int = 400) -> Refusal:
    """Return the refusal of a request that is not well-formed or is ambiguous, for the reason `why`."""
    return Refusal(status, "malformed_request", f"the request is not well-formed HTTP/1.1: {why}.")


class LogLimiter:
    """A limit for log lines: one line per minute for each peer and code, and at most 100 lines per minute."""

    def __init__(self) -> None:
        self._since = -MINUTE
        self._seen: set[tuple[str, str]] = set()

    def admits(self, peer: str, code: str) -> bool:
        """Return whether a line about this peer and this error code may be logged now."""
        if time.monotonic() - self._since >= MINUTE:
            self._since, self._seen = time.monotonic(), set()
        if (peer, code) in self._seen or len(self._seen) >= MOST_LOGGED:
            return False
        self._seen.add((peer, code))
        return True


def check_head(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> Refusal | None:
    """Return a refusal if midwatch does not accept the request line or a header that the parser accepts, else None."""
    if version not in ("1.0", "1.1"):
        return refuse_malformed("the version is not 1.1")
    if not target.startswith(b"/"):
        return refuse_malformed("the target does not begin with a slash")
    if not _is_readable(target):
        return refuse_malformed("the target is not UTF-8, or has control characters")
    seen: set[bytes] = set()
    for name, value in headers:
        if name in seen and name in SINGLE:
            return refuse_malformed(f"the header {name.decode()} occurs twice")
        seen.add(name)
        if not _is_text(value):
            return refuse_malformed("a header is not UTF-8")
        if name == b"transfer-encoding" and (version == "1.0" or value.lower() != b"chunked"):
            return refuse_malformed("the transfer encoding is not chunked")
        if name == b"expect" and value.lower() != b"100-continue":
            return refuse_malformed("the header expect is not 100-continue", 417)
    if version == "1.1" and b"host" not in seen:
        return refuse_malformed("the header host is missing")
    return None


def _is_readable(target: bytes) -> bool:
    """Return whether the target has no control characters. After the `?`, only NUL is forbidden."""
    path, _, query = target.partition(b"?")
    path, query = unquote_to_bytes(path), unquote_to_bytes(query)
    return _is_text(path) and _is_text(query) and b"\0" not in query and min(path) >= 0x20 and 0x7F not in path


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
