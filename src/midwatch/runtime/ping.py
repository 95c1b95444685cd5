"""The ping: the leader calls an address at intervals, so that a service outside notices when midwatch has stopped.

The address is one of a service such as healthchecks.io: it expects calls, and alarms people if none arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit, urlunsplit

from midwatch.base.errors import DeliveryError
from midwatch.channels.base import silence_loggers
from midwatch.domain.alert import Alert

TIMEOUT_SECONDS = 10.0
MOST_NAMED = 10
"""How many alerts the body of a ping names."""


class Ping:
    """Calls an address while all is well, and the same address with `/fail` while there are open alerts."""

    def __init__(self, url: str, list_loud: Callable[[], Awaitable[Sequence[Alert]]]) -> None:
        """Build the ping. `list_loud` returns the alerts that are open and not acknowledged."""
        self._url = url
        self._list_loud = list_loud

    async def send(self) -> str:
        """Call the address once and return the result; raise DeliveryError if it cannot be reached or refuses.

        The address contains a secret, so no text contains it. Redirects are not followed.
        """
        alerts = await self._list_loud()
        url = add_path(self._url, "fail") if alerts else self._url
        status = await self._call(url, describe(alerts).encode())
        if not 200 <= status < 300:
            raise DeliveryError(f"the receiver of the ping answered {status}; check the setting ping_url")
        return f"{'alerts reported' if alerts else 'all is well'}, answered {status}"

    async def _call(self, url: str, content: bytes) -> int:
        import httpx2  # large

        limits = httpx2.Limits(max_keepalive_connections=0)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                with silence_loggers("httpx2"):
                    async with (
                        httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False, limits=limits) as client,
                        client.stream("POST", url, content=content, headers={"content-type": "text/plain"}) as answer,
                    ):
                        return answer.status_code
        except (TimeoutError, httpx2.TimeoutException):
            raise DeliveryError(f"the receiver of the ping gave no answer within {TIMEOUT_SECONDS:g} s") from None
        except (httpx2.InvalidURL, httpx2.HTTPError, OSError) as problem:  # its message may contain the address
            name = type(problem).__name__
            raise DeliveryError(f"the receiver of the ping cannot be reached ({name}); check ping_url") from None


def add_path(url: str, name: str) -> str:
    """Return an address with one more part at the end of its path."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def describe(alerts: Sequence[Alert]) -> str:
    """Return the body of a ping: the number of alerts and what they are about, without texts of people or agents."""
    named = [f"{alert.kind} {alert.task_id or alert.id}" for alert in alerts[:MOST_NAMED]]
    return "\n".join([f"{len(alerts)} open alerts", *named]) if alerts else ""
