"""Kind `apprise`: phones, chats, mail and a hundred other services, by the URLs of the apprise library."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo, field_validator

from midwatch.base.errors import BadConfig
from midwatch.base.text import cut
from midwatch.channels.base import SendOnly, Text, silence_loggers
from midwatch.domain.channel import Delivery
from midwatch.wire.fields import Options

TITLE_SHOWN = 120
KIND_OF = {"done": "success", "failed": "failure", "timed_out": "failure", "asked": "warning"}
"""The apprise type of each notice, which some services show as a colour; all other notices are `info`."""

_LOGGERS = ("apprise", "urllib3.connectionpool")


class AppriseOptions(Options):
    """Options of kind `apprise`."""

    url: Text | None = None
    urls: tuple[Text, ...] = ()

    @field_validator("urls")
    @classmethod
    def _check(cls, urls: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if urls and info.data.get("url"):
            raise ValueError("write `url` or `urls`, not both")
        return urls


class AppriseChannel(SendOnly):
    """Sends each notice to one or more services."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name)
        read = AppriseOptions.read_section(f"channels.{name}", options)
        urls = (read.url,) if read.url else read.urls
        self._library = _load()
        self._service = self._services(urls) if urls else None
        if urls and self._service is None:
            setting = f"channels.{name}.{'url' if read.url else 'urls'}"
            raise BadConfig(f"{setting}: apprise does not know this kind of address; see docs/channels.md.")

    async def deliver(self, delivery: Delivery) -> None:
        """Send the notice to the delivery's target if the target is a URL, else to the configured services."""
        service = self._service
        if delivery.target and "://" in delivery.target:
            service = self._services((delivery.target,))
            if service is None:
                raise self._failure("apprise does not know the target's address; correct the route", permanent=True)
        if service is None:
            raise self._failure(f"there is no address; set channels.{self.name}.url", permanent=True)
        title, _, details = delivery.text.strip().partition("\n")
        with silence_loggers(*_LOGGERS):
            sent = await service.async_notify(
                title=cut(title, TITLE_SHOWN) if details else "",
                body=details or title,
                notify_type=KIND_OF.get(delivery.notice.partition(":")[0], "info"),
                body_format="text",
            )
        if not sent:  # the library's own message may contain the address
            raise self._failure("the service did not accept the notice; check its address, and that the service runs")

    def _services(self, urls: tuple[str, ...]) -> Any:
        """Return the services that `urls` address, or None if apprise does not know one of the addresses."""
        service = self._library.Apprise()
        with silence_loggers(*_LOGGERS):
            all_known = all(service.add(url) for url in urls)
        return service if all_known else None


def _load() -> Any:
    """Import the library and load its services. This takes a moment, so it is done before the first notice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it imports modules that Python 3.13 removes
        import apprise

        with silence_loggers(*_LOGGERS):
            apprise.Apprise.instantiate("json://localhost")
    return apprise
