"""The links of chains: which automations a trigger of the kind after names, and that no automation leads to itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from midwatch.base.errors import InvalidInput
from midwatch.domain.automation import Automation
from midwatch.domain.chain import Graph, find_cycle, list_upstream
from midwatch.domain.identity import AnyActor
from midwatch.domain.store import Store
from midwatch.domain.trigger import Kind
from midwatch.services.authorization import authorize, own_record

AFTER: tuple[Kind, ...] = ("after",)
Definitions = Collection[Mapping[str, Any]]


async def resolve_links(
    store: Store, entries: Sequence[Any], actor: AnyActor, known: Mapping[str, str] | None = None
) -> list[Any]:
    """Return the definitions of triggers, with the ids of automations instead of their titles.

    `known` are the ids of automations that are created together with this one, by name. Raise InvalidInput if there is
    no such automation, and Forbidden if the actor may not read what a trigger passes on.
    """
    return [await _resolve(store, entry, actor, known or {}) for entry in entries]


async def _resolve(store: Store, entry: Any, actor: AnyActor, known: Mapping[str, str]) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    if entry.get("kind") == "event" or (entry.get("kind") == "after" and entry.get("tags")):
        authorize(actor, "oversee")
    names = entry.get("automations") if entry.get("kind") == "after" else None
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return entry
    ids = []
    for name in map(str.strip, names):
        if (automation_id := known.get(name)) is None:
            automation = await _find(store, name)
            authorize(actor, "read", own_record(automation))
            automation_id = automation.id
        ids.append(automation_id)
    return {**entry, "automations": ids}


async def _find(store: Store, name: str) -> Automation:
    """Return the automation with an id, a name or a title."""
    automation = await store.get_automation(name)
    if automation is not None and automation.status != "deleted":
        return automation
    named = await store.find_automations(name) if name else []
    if named and named[0].name == name:
        return named[0]
    if len(named) == 1:
        return named[0]
    if named:
        ids = ", ".join(each.id for each in named[:3])
        raise InvalidInput(
            f"{len(named)} automations have the title {name[:100]!r}; use an id: {ids}.", field="triggers"
        )
    if automation is not None:
        raise InvalidInput(f"automation {name} is deleted; resume it first.", field="triggers")
    raise InvalidInput(
        f"there is no automation {name[:100]!r}; create it first, or correct the name.", field="triggers"
    )


async def read_links(store: Store, changed: Mapping[str, Definitions]) -> Graph:
    """Return for each automation after which others it starts, with the `changed` definitions of some of them."""
    graph: dict[str, list[str]] = {}
    for trigger in await store.list_triggers(AFTER, True):
        if trigger.automation_id not in changed:
            graph.setdefault(trigger.automation_id, []).extend(trigger.options.get("automations", ()))
    return graph | {key: list_upstream(definitions) for key, definitions in changed.items()}


async def check_links(store: Store, changed: Mapping[str, Definitions], names: Mapping[str, str] | None = None) -> None:
    """Raise InvalidInput if an automation would start after itself, directly or through others.

    `names` are the names of the automations that a file declares, by their ids.
    """
    if not any(list_upstream(definitions) for definitions in changed.values()):
        return
    graph = await read_links(store, changed)
    for start in changed:
        if cycle := find_cycle(graph, start):
            found = {key: await store.get_automation(key) for key in set(cycle)}
            titles = [(names or {}).get(key) or (each.label if (each := found[key]) else key) for key in cycle]
            table = f"automations.{titles[0]}" if names else None
            why = f"an automation cannot start after itself: {' -> '.join(titles)}; remove one of these links."
            field = f"{table}.triggers" if table else "triggers"
            raise InvalidInput(f"{table}: {why}" if table else why, field=field)
