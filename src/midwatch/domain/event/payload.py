"""Payloads: what an event tells. Each kind is one frozen class, registered under its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform


class Payload:
    """Base of all payloads: what happened, as named fields."""

    __slots__ = ()
    kind: ClassVar[str]
    live: ClassVar[bool]
    agents: ClassVar[bool]
    """Whether it is an agent's to tell; all others are midwatch's own."""
    names: ClassVar[tuple[str, ...]]

    def data(self) -> dict[str, Any]:
        """Return the payload as plain data, ready for JSON."""
        return {name.rstrip("_"): _kept(getattr(self, name)) for name in self.names}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the payload that gave this data."""
        fields = {name.rstrip("_"): name for name in cls.names}
        return cls(**{fields.get(name, name): value for name, value in data.items()})


def _kept(value: Any) -> Any:
    """Return the value as it is now; what it came from may change before it is written."""
    return deepcopy(value) if isinstance(value, dict | list) else value


KINDS: dict[str, type[Payload]] = {}
"""Every kind of event by its name."""

P = TypeVar("P", bound=Payload)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def kind(name: str, *, live: bool = False, agents: bool = False) -> Callable[[type[P]], type[P]]:
    """Make a class the frozen payload of events called `name`."""

    def register(cls: type[P]) -> type[P]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        made.kind, made.live, made.agents = name, live, agents
        made.names = tuple(f.name for f in fields(made))  # type: ignore[arg-type]  # it is a dataclass now
        KINDS[name] = made
        return made

    return register
