"""Kind `apprise`: phones, chats, mail and a hundred other services, by the URLs of the apprise library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from midwatch.base.errors import DeliveryError
from midwatch.base.text import cut
from midwatch.channels.base import Options, SendOnly, unlogged
from midwatch.domain.channel import Delivery

TITLE_SHOWN = 120
KIND_OF = {"done": "success", "failed": "failure", "timed_out": "failure", "asked": "warning"}
"""How a notice is coloured by services that have colours; others are `info`."""

_LOGGERS = ("apprise", "urllib3.connectionpool")


class AppriseChannel(SendOnly):
    """Sends each notice to one or more services. Options: `url` or `urls`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        read = Options(name, options, ("url", "urls"))
        url, urls = read.text("url"), read.texts("urls")
        if url and urls:
            raise read.wrong("urls", "write url or urls, not both")
        self._library = _loaded()
        self._service = None
        if url or urls:
            self._service = self._services((url,) if url else urls)
            if self._service is None:
                raise read.wrong(
                    "url" if url else "urls", "apprise does not know such an address; see docs/channels.md"
                )

    async def deliver(self, delivery: Delivery) -> None:
        """Send it to the delivery's target if that is a URL, else to the configured services."""
        service = self._service
        if delivery.target and "://" in delivery.target:
            service = self._services((delivery.target,))
            if service is None:
                raise self._failure("apprise does not know the target's address; correct the route", permanent=True)
        if service is None:
            raise self._failure(f"there is no address; set channels.{self.name}.url", permanent=True)
        title, _, rest = delivery.text.strip().partition("\n")
        with unlogged(*_LOGGERS):
            sent = await service.async_notify(
                title=cut(title, TITLE_SHOWN) if rest else "",
                body=rest or title,
                notify_type=KIND_OF.get(delivery.notice.partition(":")[0], "info"),
                body_format="text",
            )
        if not sent:  # the library's own words may name the address
            raise self._failure("the service did not take the notice; check its address and that it is up")

    def _services(self, urls: tuple[str, ...]) -> Any:
        """The services behind `urls`, or None when one of them is not understood."""
        service = self._library.Apprise()
        with unlogged(*_LOGGERS):
            understood = all(service.add(url) for url in urls)
        return service if understood else None

    def _failure(self, why: str, *, permanent: bool = False) -> DeliveryError:
        return DeliveryError(f"channel {self.name}: {why}.", permanent=permanent)


def _loaded() -> Any:
    """The library with its services. Looking up one loads all, which takes a moment: better now than while sending."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it imports modules that Python 3.13 drops
        import apprise

        with unlogged(*_LOGGERS):
            apprise.Apprise.instantiate("json://localhost")
    return apprise
