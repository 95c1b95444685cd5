"""The view of a chain: all automations that are linked with one, each with its last outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.base.clock import iso
from midwatch.domain.automation import Automation
from midwatch.domain.chain import Graph, list_upstream, read_outcome
from midwatch.domain.store import Store
from midwatch.domain.watch_options import describe_trigger
from midwatch.services.chain_links import read_links

MOST_NODES = 200


async def read_chain(store: Store, automation: Automation) -> list[dict[str, Any]]:
    """Return the automations that are linked with an automation, also through others, earlier ones first."""
    graph = await read_links(store, {automation.id: automation.triggers})
    found = {key: await store.get_automation(key) for key in _list_linked(graph, automation.id)}
    known = {key: each for key, each in found.items() if each is not None}
    levels = _measure(graph, known)
    names = {key: each.label for key, each in known.items()}
    order = sorted(known, key=lambda key: (levels[key], key))
    return [await _describe(store, known[key], levels[key], names) for key in order]


def _list_linked(graph: Graph, start: str) -> list[str]:
    """Return an automation and those that are linked with it in either direction."""
    neighbours: dict[str, list[str]] = {}
    for name, before in graph.items():
        for other in before:
            neighbours.setdefault(name, []).append(other)
            neighbours.setdefault(other, []).append(name)
    found, todo = [start], [start]
    while todo and len(found) < MOST_NODES:
        for other in neighbours.get(todo.pop(0), ()):
            if other not in found and len(found) < MOST_NODES:
                found.append(other)
                todo.append(other)
    return found


def _measure(graph: Graph, known: Mapping[str, Automation]) -> dict[str, int]:
    """Return how many automations come before each one, on the longest way."""
    levels = dict.fromkeys(known, 0)
    for _ in known:
        changed = False
        for name in known:
            level = max((levels[before] + 1 for before in graph.get(name, ()) if before in known), default=0)
            changed |= level != levels[name]
            levels[name] = level
        if not changed:
            break
    return levels


async def _describe(store: Store, automation: Automation, level: int, names: Mapping[str, str]) -> dict[str, Any]:
    run = next(iter(await store.list_runs(automation.id, 1)), None)
    firing = next(iter(await store.list_firings(automation.id, 1)), None)
    last: dict[str, Any] | None = None
    if firing is not None and firing.status == "skipped" and (run is None or firing.created_at >= run.created_at):
        last = {"outcome": "skipped", "at": iso(firing.created_at), "task_id": None, "why": firing.reason}
    elif run is not None:
        outcome = run.status if run.open else read_outcome(run.outcome)
        last = {"outcome": outcome, "at": iso(run.completed_at or run.created_at), "task_id": run.id, "why": run.error}
    times = automation.timed and automation.status == "active"
    starts = [describe_trigger(entry, names) for entry in automation.triggers]
    return {
        "id": automation.id,
        "title": automation.label,
        "status": automation.status,
        "level": level,
        "after": [key for key in dict.fromkeys(list_upstream(automation.triggers)) if key in names],
        "starts": ["at its times", *starts] if times else starts,
        "last": last,
    }
