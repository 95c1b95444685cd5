"""Kind `webhook`: posts notices as JSON, signed as Standard Webhooks describes (https://www.standardwebhooks.com)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from midwatch.base.clock import iso
from midwatch.channels.base import SendOnly, Text, silence_loggers
from midwatch.domain.channel import Delivery
from midwatch.wire.fields import Options, Seconds

if TYPE_CHECKING:
    import httpx2

TIMEOUT_SECONDS = 10.0
TEMPORARY = frozenset({408, 425, 429})  # statuses after which another try may succeed

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = ("content-type", "content-length", "transfer-encoding")


def is_address(text: str) -> bool:
    """Return whether `text` is an http or https URL with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _check_address(url: str) -> str:
    if not is_address(url):
        raise ValueError("write an address that begins with http:// or https://")
    return url


def _decode_secret(secret: Any) -> Any:
    text = secret.strip().removeprefix("whsec_") if isinstance(secret, str) else ""
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValueError("write whsec_ and base64, such as `openssl rand -base64 32` prints")
    return key


class WebhookOptions(Options):
    """Options of kind `webhook`."""

    url: Annotated[Text, AfterValidator(_check_address)] | None = None
    secret: Annotated[bytes, BeforeValidator(_decode_secret)] | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    timeout: Seconds = Field(TIMEOUT_SECONDS, gt=0, allow_inf_nan=False)

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        for name, value in headers.items():
            if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
                raise ValueError("write names and values as plain ASCII on one line")
            if name.lower() in _OURS or name.lower().startswith("webhook-"):
                raise ValueError(f"midwatch itself sets the header {name}; remove it")
        if headers and not info.data.get("url"):
            raise ValueError("`headers` are sent only to `url`, which is missing; set `url`")
        return headers


class WebhookChannel(SendOnly):
    """Posts each notice to an address."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        self._options = WebhookOptions.read_section(f"channels.{name}", options)
        self._client: httpx2.AsyncClient | None = None

    async def deliver(self, delivery: Delivery) -> None:
        """Post the notice to the delivery's target if the target is an address, else to the configured address."""
        target = delivery.target if delivery.target and is_address(delivery.target) else None
        url = target or self._options.url
        if url is None:
            raise self._failure(f"there is no address; set channels.{self.name}.url", permanent=True)
        content = body(delivery)
        headers = {**({} if target else self._options.headers), "content-type": "application/json"}
        status = await self._post(url, content.encode(), {**headers, **self._sign(delivery.id, content)})
        if 200 <= status < 300:
            return
        permanent = 400 <= status < 500 and status not in TEMPORARY
        remedy = "; check the receiver's address and what it accepts" if permanent else ""
        raise self._failure(f"the receiver answered {status}{remedy}", permanent=permanent)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _sign(self, delivery_id: str, content: str) -> dict[str, str]:
        """Return the headers that prove the sender and identify a repeated notice."""
        from standardwebhooks import Webhook

        now = datetime.now(UTC)
        headers = {"webhook-id": delivery_id, "webhook-timestamp": str(int(now.timestamp()))}
        if self._options.secret:
            headers["webhook-signature"] = Webhook(self._options.secret).sign(delivery_id, now, content)
        return headers

    async def _post(self, url: str, content: bytes, headers: dict[str, str]) -> int:
        """Post the content and return the HTTP status.

        The body of the answer is not read, because it may be endless.
        """
        import httpx2

        timeout = self._options.timeout
        if self._client is None:
            self._client = httpx2.AsyncClient(
                timeout=timeout, follow_redirects=False, limits=httpx2.Limits(max_keepalive_connections=0)
            )
        try:
            async with asyncio.timeout(timeout):
                with silence_loggers("httpx2"):
                    async with self._client.stream("POST", url, content=content, headers=headers) as response:
                        return response.status_code
        except (TimeoutError, httpx2.TimeoutException):
            raise self._failure(f"the receiver gave no answer within {timeout:g} s; check that it runs") from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
            raise self._failure("the address of the receiver is not valid; correct it", permanent=True) from None
        except (httpx2.HTTPError, OSError) as problem:  # its message may contain the address; report its class
            raise self._failure(f"the receiver cannot be reached ({type(problem).__name__}); check it") from None


def body(delivery: Delivery) -> str:
    """Return the JSON text to post. The text is the same at every attempt of a delivery."""
    data = {"delivery_id": delivery.id, "task_id": delivery.task_id, "notice": delivery.notice, "text": delivery.text}
    kind = delivery.notice.partition(":")[0]
    return json.dumps({"type": f"task.{kind}", "timestamp": iso(delivery.created_at), "data": data})
