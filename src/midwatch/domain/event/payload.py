"""Payloads: the content of events. Each kind of event is one frozen class, registered under its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform


class Payload:
    """Base class of all payloads. Agents may emit a kind of event only if its class sets `agents`."""

    __slots__ = ()
    kind: ClassVar[str]
    live: ClassVar[bool]
    agents: ClassVar[bool]
    names: ClassVar[tuple[str, ...]]
    keys: ClassVar[tuple[tuple[str, str], ...]]

    def data(self) -> dict[str, Any]:
        """Return the payload as plain data, ready for JSON.

        Dictionaries and lists are copied, because the originals may change before the event is written.
        """
        return {
            key: value if type(value := getattr(self, name)) in SIMPLE else deepcopy(value) for key, name in self.keys
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return the payload with this data. It is the reverse of the method `data`."""
        names = dict(cls.keys)
        return cls(**{names.get(key, key): value for key, value in data.items()})


SIMPLE = frozenset({str, int, float, bool, NoneType})
KINDS: dict[str, type[Payload]] = {}

P = TypeVar("P", bound=Payload)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def kind(name: str, *, live: bool = False, agents: bool = False) -> Callable[[type[P]], type[P]]:
    """Return a decorator that makes a class the payload of events of the kind `name`.

    Type checkers treat a payload as frozen. At run time it is not, because every task makes several payloads, and a
    frozen one takes more than twice as long to make. An event has a copy of the data, so a later change has no effect.
    """

    def register(cls: type[P]) -> type[P]:
        payload = dataclass(slots=True, kw_only=True)(cls)
        payload.kind, payload.live, payload.agents = name, live, agents
        payload.names = tuple(f.name for f in fields(payload))  # type: ignore[arg-type]  # it is a dataclass now
        payload.keys = tuple((name.rstrip("_"), name) for name in payload.names)
        KINDS[name] = payload
        return payload

    return register
