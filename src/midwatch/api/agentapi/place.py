"""The place at which a request uses agentapi: its session, and the addresses around it."""

from __future__ import annotations

from typing import NamedTuple

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
BELOW = "/sessions/{key:path}/agentapi"
PLACE = "midwatch.agentapi"
"""The key of the ASGI scope under which the `Place` of a request is stored."""


class Place(NamedTuple):
    """The key of the session, the address of its chat page, and the address of the API that the chat page uses."""

    key: str
    chat: str
    console: str
