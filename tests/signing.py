"""Sign deliveries to webhooks as their senders do."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

JSON = {"content-type": "application/json"}


def sign_github(secret: str, body: bytes, event: str = "push", delivery: str = "d1") -> dict[str, str]:
    """Return the headers of a delivery of GitHub."""
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        **JSON, "X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Event": event, "X-GitHub-Delivery": delivery,
    }  # fmt: skip


def sign_standard(secret: str, body: bytes, at: int, delivery: str = "d1") -> dict[str, str]:
    """Return the headers of a delivery by Standard Webhooks."""
    key = b64decode(secret.removeprefix("whsec_"))
    signed = hmac.new(key, f"{delivery}.{at}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{b64encode(signed).decode()}"
    return {**JSON, "webhook-id": delivery, "webhook-timestamp": str(at), "webhook-signature": signature}
