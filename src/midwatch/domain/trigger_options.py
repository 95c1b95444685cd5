"""The options of triggers: for each kind, one function checks the options and returns them as they are stored.

An option without a value is left out, so that equal definitions are stored alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from midwatch.base.errors import InvalidInput
from midwatch.domain.watch_options import WATCH_CHECKS, Check, Options, read_filter, refuse, refuse_others
from midwatch.domain.webhook import SIGNS

MOST_PER_MINUTE = 600
HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,100}", re.ASCII)


def check_options(kind: str, options: Options) -> dict[str, Any]:
    """Return the checked options of a trigger of this kind, without `kind`. Raise InvalidInput for a wrong option."""
    given = {name: value for name, value in options.items() if value is not None and name != "kind"}
    if "per_minute" in given:
        check_number(given, "per_minute", 1, MOST_PER_MINUTE)
    check = CHECKS.get(kind)
    return given if check is None else check(given)


def check_number(options: Options, name: str, least: int, most: int) -> None:
    """Raise InvalidInput if an option is not a whole number from `least` to `most`."""
    value = options[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"`{name}` of a trigger must be a whole number from {least} to {most}.", field="triggers")


def check_webhook(options: Options) -> dict[str, Any]:
    """Check the options of a webhook: how deliveries are signed, and which of them start a run."""
    refuse_others("webhook", options, ("sign", "header", "id_header", "filter", "per_minute"))
    sign = options.get("sign")
    if sign not in SIGNS:
        raise refuse("webhook", "sign", f"must be one of {', '.join(SIGNS)}")
    for name in ("header", "id_header"):
        if name not in options:
            continue
        if sign != "hmac":
            raise refuse("webhook", name, "is only for the sign hmac; leave it out")
        if not isinstance(options[name], str) or not HEADER_NAME.fullmatch(options[name]):
            raise refuse("webhook", name, "must be the name of a header, such as X-Signature")
    return read_filter("webhook", options)


CHECKS: Mapping[str, Check] = {
    "webhook": check_webhook,
    **WATCH_CHECKS,
}
"""For each kind the function that checks its options. It gets them without `kind` and without missing values."""
