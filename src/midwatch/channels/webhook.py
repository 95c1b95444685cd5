"""Kind `webhook`: posts notices as JSON, signed as Standard Webhooks describes (https://www.standardwebhooks.com)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from midwatch.base.clock import iso
from midwatch.base.errors import DeliveryError
from midwatch.channels.base import Options, SendOnly, unlogged
from midwatch.domain.channel import Delivery

if TYPE_CHECKING:
    import httpx2

TIMEOUT_SECONDS = 10.0
MAY_PASS = frozenset({408, 425, 429})
"""Refusals that are worth another try."""

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = ("content-type", "content-length", "transfer-encoding")


class WebhookChannel(SendOnly):
    """Posts each notice to an address. Options: `url`, `secret`, `headers`, `timeout`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        read = Options(name, options, ("url", "secret", "headers", "timeout"))
        self._url = read.text("url")
        if self._url and not is_address(self._url):
            raise read.wrong("url", "write an address that begins with http:// or https://")
        self._key = _key(read)
        self._headers = _headers(read)
        if self._headers and not self._url:
            raise read.wrong("headers", "they are sent to channels." + name + ".url only, which is missing")
        self._timeout = read.seconds("timeout", TIMEOUT_SECONDS)
        self._client: httpx2.AsyncClient | None = None

    async def deliver(self, delivery: Delivery) -> None:
        """Post it to the delivery's target if that is an address, else to the configured one."""
        target = delivery.target if delivery.target and is_address(delivery.target) else None
        url = target or self._url
        if url is None:
            raise self._failure(f"there is no address; set channels.{self.name}.url", permanent=True)
        content = body(delivery)
        headers = {**({} if target else self._headers), "content-type": "application/json"}
        status = await self._post(url, content.encode(), {**headers, **self._signed(delivery.id, content)})
        if 200 <= status < 300:
            return
        permanent = 400 <= status < 500 and status not in MAY_PASS
        remedy = "; check its address and what it accepts" if permanent else ""
        raise self._failure(f"the receiver answered {status}{remedy}", permanent=permanent)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _signed(self, delivery_id: str, content: str) -> dict[str, str]:
        """The headers that let the receiver tell who sends, and that a repeated notice is the same one."""
        from standardwebhooks import Webhook

        now = datetime.now(UTC)
        headers = {"webhook-id": delivery_id, "webhook-timestamp": str(int(now.timestamp()))}
        if self._key:
            headers["webhook-signature"] = Webhook(self._key).sign(delivery_id, now, content)
        return headers

    async def _post(self, url: str, content: bytes, headers: dict[str, str]) -> int:
        """The status of the answer. Its body is not read: nothing in it matters, and it may have no end."""
        import httpx2

        if self._client is None:
            self._client = httpx2.AsyncClient(
                timeout=self._timeout, follow_redirects=False, limits=httpx2.Limits(max_keepalive_connections=0)
            )
        try:
            async with asyncio.timeout(self._timeout):
                with unlogged("httpx2"):
                    async with self._client.stream("POST", url, content=content, headers=headers) as response:
                        return response.status_code
        except (TimeoutError, httpx2.TimeoutException):
            raise self._failure(f"no answer within {self._timeout:g} s") from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise self._failure("the address cannot be used; correct it", permanent=True) from None
        except (httpx2.HTTPError, OSError) as problem:  # its text may name the address, so only its kind is told
            raise self._failure(f"the receiver cannot be reached ({type(problem).__name__})") from None

    def _failure(self, why: str, *, permanent: bool = False) -> DeliveryError:
        return DeliveryError(f"channel {self.name}: {why}.", permanent=permanent)


def body(delivery: Delivery) -> str:
    """The JSON text that is posted; the same at every try."""
    data = {
        "delivery_id": delivery.id,
        "task_id": delivery.task_id,
        "notice": delivery.notice,
        "text": delivery.text,
    }
    kind = delivery.notice.partition(":")[0]
    return json.dumps({"type": f"task.{kind}", "timestamp": iso(delivery.created_at), "data": data})


def is_address(text: str) -> bool:
    """Whether `text` is an http or https URL with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _key(read: Options) -> bytes | None:
    secret = read.text("secret")
    if secret is None:
        return None
    text = secret.removeprefix("whsec_")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise read.wrong("secret", "write whsec_ and base64, such as `openssl rand -base64 32` prints")
    return key


def _headers(read: Options) -> dict[str, str]:
    headers = read.table("headers")
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise read.wrong("headers", "names and values are plain ASCII on one line")
        if name.lower() in _OURS or name.lower().startswith("webhook-"):
            raise read.wrong("headers", f"{name} is set by midwatch; leave it out")
    return headers
