"""Webhooks: the secret of a webhook, the signature of a delivery, and the id by which a delivery is recognised again.

The ways to sign are Standard Webhooks, those of GitHub and GitLab, and a plain HMAC in a header. All compare in
constant time, and read nothing but bytes and headers: a payload is parsed only after its signature was checked.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

from midwatch.base.clock import SECOND
from midwatch.base.errors import InvalidInput

Headers = Mapping[str, str]
"""The headers of a delivery. Their names are in lower case."""

PREFIX = "whsec_"
TOLERANCE = 300
"""How many seconds the time of a signed delivery may differ from ours."""
SECRET = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{14,198})[\x21-\x7e]")
SIGNATURE_HEADER = "X-Signature"
MOST_SIGNATURES = 20
LONGEST_KEY = 200
TIMES = ("x-timestamp", "x-signature-timestamp", "x-request-timestamp", "webhook-timestamp")
"""Headers with the time of a delivery that has no id. The time makes two deliveries with the same body differ."""


def make_secret() -> str:
    """Return a new secret. Standard Webhooks and GitLab use its part after the prefix, GitHub the whole text."""
    return PREFIX + b64encode(secrets.token_bytes(32)).decode()


def check_secret(secret: object, sign: str) -> str:
    """Return the secret that a person chose for a webhook. Raise InvalidInput, which never shows it, if it is unfit."""
    if not isinstance(secret, str) or not SECRET.fullmatch(secret):
        raise InvalidInput(
            "the secret of a webhook must have 16 to 200 printable ASCII characters; leave it out to get a new one.",
            field="triggers",
        )
    if sign == "standard" and len(_standard_key(secret) or b"") < 16:
        raise InvalidInput(
            "the secret of a webhook with the sign standard must be whsec_ and at least 16 bytes in base64; leave it "
            "out to get a new one.",
            field="triggers",
        )
    return secret


def is_signed(options: Mapping[str, Any], secret: str, headers: Headers, body: bytes, now: int) -> bool:
    """Return whether a delivery was signed with the secret of the webhook, and is not too old or from the future."""
    return SIGNS[options.get("sign", "")](options, secret, headers, body, now)


def find_delivery_id(options: Mapping[str, Any], headers: Headers, body: bytes) -> str:
    """Return the id by which a repeated delivery is recognised. Without an id of the sender it comes from the body."""
    sign = options.get("sign")
    body_hash = hashlib.sha256(body).hexdigest()
    if sign == "github":
        found = headers.get("x-github-delivery")
    elif sign == "gitlab":
        found = headers.get("webhook-id") if "webhook-signature" in headers else headers.get("idempotency-key")
        names = ("x-gitlab-webhook-uuid", "x-gitlab-event-uuid")
        more = next((headers[name] for name in names if headers.get(name)), None)
        found = found or (f"{more} {body_hash}" if more else None)  # several deliveries may share these ids
    elif sign == "hmac":
        found = headers.get(str(options.get("id_header", "")).lower())
        moment = next((headers[name] for name in TIMES if headers.get(name)), "")
        found = found or hashlib.sha256(f"{moment}\n{body_hash}".encode()).hexdigest()
    else:
        found = headers.get("webhook-id")
    found = (found or body_hash).strip()
    if len(found) > LONGEST_KEY or not found.isprintable() or not found.isascii():
        return hashlib.sha256(found.encode()).hexdigest()
    return found


# -- the ways to sign --------------------------------------------------------------------------------------------------


def _check_standard(options: Mapping[str, Any], secret: str, headers: Headers, body: bytes, now: int) -> bool:
    message_id, moment = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    fits = re.fullmatch(r"[0-9]{1,12}", moment, re.ASCII) and abs(int(moment) - now // SECOND) <= TOLERANCE
    key = _standard_key(secret)
    signed = hmac.digest(key or b"none", f"{message_id}.{moment}.".encode() + body, "sha256")
    given = headers.get("webhook-signature", "").split(" ")[:MOST_SIGNATURES]
    matches = [_equal(part, "v1," + b64encode(signed).decode()) for part in given]
    return any(matches) and bool(key and fits and message_id and "." not in message_id)


def _check_github(options: Mapping[str, Any], secret: str, headers: Headers, body: bytes, now: int) -> bool:
    signed = hmac.digest(secret.encode(), body, "sha256").hex()
    return _equal(headers.get("x-hub-signature-256", ""), f"sha256={signed}")


def _check_gitlab(options: Mapping[str, Any], secret: str, headers: Headers, body: bytes, now: int) -> bool:
    """Check the signature of GitLab, which is that of Standard Webhooks, or the token of versions without it."""
    if "webhook-signature" in headers:
        return _check_standard(options, secret, headers, body, now)
    return _equal(headers.get("x-gitlab-token", ""), secret)


def _check_hmac(options: Mapping[str, Any], secret: str, headers: Headers, body: bytes, now: int) -> bool:
    """Check an HMAC with SHA-256 of the body in hex or base64, with or without `sha256=`."""
    given = headers.get(str(options.get("header", SIGNATURE_HEADER)).lower(), "").removeprefix("sha256=")
    signed = hmac.digest(secret.encode(), body, "sha256")
    in_hex, in_base64 = _equal(given.lower(), signed.hex()), _equal(given, b64encode(signed).decode())
    return in_hex or in_base64


SIGNS: Mapping[str, Callable[[Mapping[str, Any], str, Headers, bytes, int], bool]] = {
    "standard": _check_standard,
    "github": _check_github,
    "gitlab": _check_gitlab,
    "hmac": _check_hmac,
}


def _standard_key(secret: str) -> bytes | None:
    """Return the key in a secret of Standard Webhooks, or None if it is not base64."""
    try:
        return b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return None


def _equal(given: str, right: str) -> bool:
    """Compare in constant time. Only the same bytes are equal: characters that merely look alike are not."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode())
