"""The modes and models that an agent offers for a session, and the request that chooses a mode or a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from midwatch.agents.streams.reading import get_dicts

Setting = Literal["mode", "model"]


class Offer(NamedTuple):
    """The values that an agent offers for one setting. `values` maps the id of each value to its name."""

    values: Mapping[str, str]
    current: str | None
    option: str | None  # the id of the configuration option, for agents that offer settings as configuration options

    @property
    def label(self) -> str | None:
        """The id of the current value; its name if the id contains `|` and so is not readable."""
        odd = self.current is not None and "|" in self.current
        return (self.values.get(self.current or "") or self.current) if odd else self.current


def read_offer(setting: Setting, answer: Mapping[str, Any]) -> Offer | None:
    """Return the values that the agent offers, or None. `answer` is its answer to a new or resumed session."""
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
    """Return the request that sets `setting` to `wanted`, as method and parameters; None if it is set already.

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


def _matches(requested: str, value: str, name: str) -> bool:
    return requested == value or requested.lower() in (name.lower(), value.rpartition("#")[2].lower())


def _select(items: Any, key: str) -> list[Mapping[str, Any]]:
    return [item for item in get_dicts(items) if isinstance(item.get(key), str)]


def _values(items: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the values in `items`, also those that are inside groups."""
    for item in get_dicts(items):
        if isinstance(item.get("options"), list):
            yield from _values(item["options"])
        elif isinstance(item.get("value"), str):
            yield item
