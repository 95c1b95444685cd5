"""Modes and models of a session: the values that an agent offers, and the request that chooses one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from midwatch.agents.streams.reading import get_dicts

Setting = Literal["mode", "model"]


class Offer(NamedTuple):
    """The values of one setting by id, with their names."""

    values: Mapping[str, str]
    current: str | None
    option: str | None  # the id of the configuration option, for agents that offer settings as configuration options

    @property
    def label(self) -> str | None:
        """The current value, or its name if only the agent understands the value."""
        odd = self.current is not None and "|" in self.current
        return (self.values.get(self.current or "") or self.current) if odd else self.current


def read_offer(setting: Setting, answer: Mapping[str, Any]) -> Offer | None:
    """Return the offer in the answer to a new or resumed session, or None."""
    if isinstance(offered := answer.get(f"{setting}s"), Mapping):
        noun, key = setting.title(), "id" if setting == "mode" else "modelId"
        values = {item[key]: str(item.get("name", "")) for item in _select(offered.get(f"available{noun}s"), key)}
        return Offer(values, offered.get(f"current{noun}Id"), None)
    for option in _select(answer.get("configOptions"), "id"):
        if setting in (option.get("category"), option["id"]):
            values = {item["value"]: str(item.get("name", "")) for item in _values(option.get("options"))}
            return Offer(values, option.get("currentValue"), option["id"])
    return None


def make_call(setting: Setting, offered: Offer, session: str, wanted: str) -> tuple[str, dict[str, Any]] | None:
    """Return the method and the parameters that choose the value; None if it is chosen already.

    Raise KeyError if the agent does not offer the value.
    """
    value = next((known for known, name in offered.values.items() if _matches(wanted, known, name)), None)
    if value is None:
        raise KeyError(wanted)
    if value == offered.current:
        return None
    if offered.option is not None:
        return "session/set_config_option", {"sessionId": session, "configId": offered.option, "value": value}
    return f"session/set_{setting}", {"sessionId": session, f"{setting}Id": value}


def _matches(wish: str, value: str, name: str) -> bool:
    return wish == value or wish.lower() in (name.lower(), value.rpartition("#")[2].lower())


def _select(items: Any, key: str) -> list[Mapping[str, Any]]:
    return [item for item in get_dicts(items) if isinstance(item.get(key), str)]


def _values(items: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the values, which stand alone or in groups."""
    for item in get_dicts(items):
        if isinstance(item.get("options"), list):
            yield from _values(item["options"])
        elif isinstance(item.get("value"), str):
            yield item
