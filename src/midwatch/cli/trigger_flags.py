"""Options of commands that describe triggers."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from midwatch.base.errors import InvalidInput
from midwatch.cli.parameters import Option

Sign = Literal["github", "gitlab", "standard", "hmac"]

Triggers = Annotated[
    list[str] | None,
    Option(
        "--trigger", metavar="JSON", help='Trigger as JSON, such as {"kind": "webhook", "sign": "hmac"}. Repeatable.'
    ),
]
Webhook = Annotated[
    Sign | None, Option("--webhook", help="Also run when a delivery arrives, signed in this way. Prints its address.")
]
Filter = Annotated[
    list[str] | None,
    Option("--filter", metavar="CONDITION", help="For --webhook: run only if this holds: action = opened. Repeatable."),
]


def read_triggers(
    triggers: list[str] | None = None, webhook: Sign | None = None, conditions: list[str] | None = None
) -> list[dict[str, Any]]:
    """Return the definitions of triggers that these options describe."""
    defined = [_parse(text) for text in triggers or () if text.strip()]
    if conditions and webhook is None:
        raise InvalidInput("--filter needs --webhook; name how deliveries are signed, such as --webhook github.")
    if webhook is not None:
        defined.append({"kind": "webhook", "sign": webhook, **({"filter": conditions} if conditions else {})})
    return defined


def _parse(text: str) -> dict[str, Any]:
    try:
        trigger = json.loads(text)
    except (ValueError, RecursionError):
        trigger = None
    if not isinstance(trigger, dict):
        raise InvalidInput(
            'a trigger must be JSON, such as {"kind": "webhook", "sign": "github"}; see the page about triggers.',
            field="triggers",
        )
    return trigger


def read_payload(text: bytes) -> Any:
    """Return the payload of a test as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput("the payload is not valid JSON; correct the file.", field="payload") from None
