"""Modes and models of a session: what an agent offers, however it tells it, and how one is chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

Setting = Literal["mode", "model"]


class Call(NamedTuple):
    """What to ask the agent to have a setting changed."""

    method: str
    params: dict[str, Any]


class Offer(NamedTuple):
    """The values of one setting, by id, with their names."""

    values: Mapping[str, str]
    current: str | None
    option: str | None
    """The id of the configuration option, for agents that tell settings as such."""

    @property
    def label(self) -> str | None:
        """The current value, or its name where the value means something to the agent alone."""
        odd = self.current is not None and "|" in self.current
        return (self.values.get(self.current or "") or self.current) if odd else self.current


def offer(setting: Setting, told: Mapping[str, Any]) -> Offer | None:
    """What the answer to a new or loaded session offers."""
    if setting == "mode" and isinstance(modes := told.get("modes"), Mapping):
        values = {one["id"]: str(one.get("name", "")) for one in _listed(modes.get("availableModes"), "id")}
        return Offer(values, modes.get("currentModeId"), None)
    if setting == "model" and isinstance(models := told.get("models"), Mapping):
        values = {one["modelId"]: str(one.get("name", "")) for one in _listed(models.get("availableModels"), "modelId")}
        return Offer(values, models.get("currentModelId"), None)
    for option in _listed(told.get("configOptions"), "id"):
        if setting in (option.get("category"), option["id"]):
            values = {one["value"]: str(one.get("name", "")) for one in _values(option.get("options"))}
            return Offer(values, option.get("currentValue"), option["id"])
    return None


def call(setting: Setting, offered: Offer, session: str, wish: str) -> Call | None:
    """How to have the wish; None if it is so already. KeyError if it is not offered."""
    value = next((one for one, name in offered.values.items() if _same(wish, one, name)), None)
    if value is None:
        raise KeyError(wish)
    if value == offered.current:
        return None
    if offered.option is not None:
        return Call("session/set_config_option", {"sessionId": session, "configId": offered.option, "value": value})
    name = "modeId" if setting == "mode" else "modelId"
    return Call(f"session/set_{setting}", {"sessionId": session, name: value})


def _same(wish: str, value: str, name: str) -> bool:
    return wish == value or wish.lower() in (name.lower(), value.rpartition("#")[2].lower())


def _listed(many: Any, key: str) -> Iterator[Mapping[str, Any]]:
    for one in many if isinstance(many, list) else ():
        if isinstance(one, Mapping) and isinstance(one.get(key), str):
            yield one


def _values(many: Any) -> Iterator[Mapping[str, Any]]:
    """Values stand alone or in groups."""
    for one in many if isinstance(many, list) else ():
        if isinstance(one, Mapping) and isinstance(one.get("options"), list):
            yield from _values(one["options"])
        elif isinstance(one, Mapping) and isinstance(one.get("value"), str):
            yield one
