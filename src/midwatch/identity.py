"""Identity: who acts, and what they may do."""

from __future__ import annotations

from typing import Literal, NamedTuple

Role = Literal["viewer", "operator", "owner"]


class Actor(NamedTuple):
    """Who acts. `name` goes into every record and event; `role` says what is allowed."""

    name: str
    role: Role


OWNER = Actor("owner", "owner")
"""Whoever holds the token in the home directory."""
