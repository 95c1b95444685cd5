"""Payloads: the content of events. Each kind of event is one frozen class, registered under its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform


class Payload:
    """Base class of all payloads. Agents may emit a kind of event only if its class sets `agents`."""

    __slots__ = ()
    kind: ClassVar[str]
    live: ClassVar[bool]
    agents: ClassVar[bool]
    names: ClassVar[tuple[str, ...]]

    def data(self) -> dict[str, Any]:
        """Return the payload as plain data, ready for JSON."""
        return {name.rstrip("_"): _copy(getattr(self, name)) for name in self.names}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the payload with this data. It is the reverse of the method `data`."""
        fields = {name.rstrip("_"): name for name in cls.names}
        return cls(**{fields.get(name, name): value for name, value in data.items()})


def _copy(value: Any) -> Any:
    """Return a deep copy of a value, because the original may change before the event is written."""
    return deepcopy(value) if isinstance(value, dict | list) else value


KINDS: dict[str, type[Payload]] = {}

P = TypeVar("P", bound=Payload)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def kind(name: str, *, live: bool = False, agents: bool = False) -> Callable[[type[P]], type[P]]:
    """Return a decorator that makes a class the frozen payload of events of the kind `name`."""

    def register(cls: type[P]) -> type[P]:
        payload = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        payload.kind, payload.live, payload.agents = name, live, agents
        payload.names = tuple(f.name for f in fields(payload))  # type: ignore[arg-type]  # it is a dataclass now
        KINDS[name] = payload
        return payload

    return register
