"""Chains: automations that start after the end of others, and how a trigger joins the ends of several parts.

The parts of a trigger are automations and tags. Parts that grow out of a common automation are one group: their ends
are joined within one chain. Between groups, the newest end of each group counts. All functions are pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from midwatch.base.text import cut
from midwatch.domain.trigger import PAYLOAD_SHOWN

TAG = "tag:"
"""The beginning of the name of a part that is a tag."""
MOST_CHAINS = 100
"""How many chains one trigger remembers."""
MOST_DEEP = 20
"""The most automations in a chain, one after the other."""
REASON_SHOWN = 300
REPLACED = "replaced by the run "
"""The beginning of the error of a run that the next run replaces."""
LONGEST_KEY = 400
PAYLOAD_ROOM = PAYLOAD_SHOWN - 2000

Graph = Mapping[str, Collection[str]]
"""For each automation that starts after others, the ids of these others."""
EndOutcome = Literal["ok", "failed", "cancelled", "skipped"]


class End(NamedTuple):
    """The end of one part: of a run, of a task with a tag, or of a firing that started no run."""

    part: str
    id: str
    title: str
    outcome: EndOutcome
    chain_id: str
    path: tuple[str, ...] = ()
    why: str = ""
    not_run: tuple[str, ...] = ()
    """The titles of automations that did not run because of earlier ends."""
    bad: bool = False
    """Whether something failed or was held up, and people should know if a chain ends because of it."""

    @property
    def text(self) -> str:
        """Return what happened in a few words."""
        how = (
            "ended ok" if self.outcome == "ok" else self.outcome if self.outcome == "failed" else f"was {self.outcome}"
        )
        return f"{self.title} {how}{f': {self.why}' if self.why and self.outcome == 'skipped' else ''}"


class Joined(NamedTuple):
    """The ends for which a trigger fires. If `runs` is False, it fires without a run, because of these ends."""

    ends: tuple[End, ...]
    runs: bool
    key: str


def read_outcome(outcome: str | None) -> EndOutcome:
    """Return what the outcome of a task means for the automations after it."""
    match outcome:
        case "ok" | "silent":
            return "ok"
        case "cancelled":
            return "cancelled"
        case "skipped":  # there was nothing to do
            return "skipped"
    return "failed"


def is_bad_end(outcome: EndOutcome, error: str | None) -> bool:
    """Return whether people should know of the end of a task. A run that the next one replaces is no failure."""
    return outcome == "failed" or (outcome == "cancelled" and not (error or "").startswith(REPLACED))


# -- the graph -------------------------------------------------------------------------------------------------------


def list_upstream(definitions: Collection[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the automations after which an automation with these triggers starts."""
    found = (entry.get("automations") or () for entry in definitions if entry.get("kind") == "after")
    return list(dict.fromkeys(str(name) for names in found for name in names))


def find_cycle(graph: Graph, start: str) -> list[str] | None:
    """Return the automations of a cycle through `start`, each after the one before it, or None."""
    stack, seen = [[start]], set[str]()
    while stack:
        path = stack.pop()
        for before in graph.get(path[-1], ()):
            if before == start:
                return [start, *reversed(path)]
            if before not in seen:
                seen.add(before)
                stack.append([*path, before])
    return None


def list_ancestors(graph: Graph, name: str) -> set[str]:
    """Return an automation and all that lead to it."""
    found, todo = {name}, [name]
    while todo:
        for before in graph.get(todo.pop(), ()):
            if before not in found:
                found.add(before)
                todo.append(before)
    return found


def group_parts(parts: Sequence[str], graph: Graph) -> list[list[str]]:
    """Return the parts in groups; the parts of a group have an automation in common that leads to them."""
    groups: list[tuple[list[str], set[str]]] = []
    for part in parts:
        names, ancestors = [part], list_ancestors(graph, part)
        apart = [group for group in groups if group[1].isdisjoint(ancestors)]
        for group in groups:
            if group not in apart:
                names, ancestors = [*group[0], *names], ancestors | group[1]
        groups = [*apart, (names, ancestors)]
    return [sorted(names, key=list(parts).index) for names, _ in groups]


# -- joining ---------------------------------------------------------------------------------------------------------


def list_parts(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts of a trigger: ids of automations, and tags."""
    return [*options.get("automations", ()), *(f"{TAG}{tag}" for tag in options.get("tags", ()))]


def join_end(
    state: Mapping[str, Any] | None, options: Mapping[str, Any], groups: Sequence[Sequence[str]], end: End
) -> tuple[dict[str, Any], Joined | None]:
    """Return the new state of a trigger after the end of one of its parts, and what it fires for, or None.

    The state has the ends of each chain, and for each group of several the ends that wait for the other groups. After
    a skip, a chain keeps the ends that fit: if the other parts are retried, the chain goes on.
    """
    chains = dict((state or {}).get("chains", {}))
    ready = dict((state or {}).get("ready", {}))
    group = next(group for group in groups if end.part in group)
    ends = {**{part: _read(each) for part, each in chains.pop(end.chain_id, {}).items()}, end.part: end}
    complete = all(part in ends for part in group)
    found = tuple(ends[part] for part in group if part in ends)
    joined: Joined | None = None
    if options.get("join") == "any":
        if _fits(options, end):
            joined = Joined(found, True, end.id if len(group) == 1 else f"{end.chain_id}/{group[0]}")
        elif complete and not any(_fits(options, each) for each in found):
            joined = Joined(found, False, _key(found))
    elif complete:
        ready["+".join(group)] = [each._asdict() for each in found]
        waiting = [ready.get("+".join(names)) for names in groups]
        if all(waiting):
            found = tuple(_read(each) for names in waiting for each in names or ())
            joined, ready = Joined(found, all(_fits(options, each) for each in found), _key(found)), {}
    runs = joined is not None and joined.runs
    kept = {part: each for part, each in ends.items() if not complete or (_fits(options, each) and not runs)}
    if kept:
        chains[end.chain_id] = {part: each._asdict() for part, each in kept.items()}
    return {"chains": dict(list(chains.items())[-MOST_CHAINS:]), "ready": ready}, joined


def _key(ends: Sequence[End]) -> str:
    ids = "+".join(end.id for end in ends)
    return ids if len(ids) <= LONGEST_KEY else hashlib.sha256(ids.encode()).hexdigest()


def _read(data: Mapping[str, Any]) -> End:
    return End(**{**data, "path": tuple(data["path"]), "not_run": tuple(data["not_run"])})


def _fits(options: Mapping[str, Any], end: End) -> bool:
    """Return whether an end is one that the trigger waits for."""
    wanted = options.get("outcomes", ("ok",))
    return "any" in wanted or end.outcome in wanted


def merge_paths(paths: Collection[Sequence[str]]) -> tuple[str, ...]:
    """Return the automations of several paths, each once."""
    return tuple(dict.fromkeys(name for path in paths for name in path))


# -- what is passed on -----------------------------------------------------------------------------------------------


def summarise(ends: Sequence[End]) -> str:
    """Return the ends of all parts in one line."""
    return "; ".join(end.text for end in ends)


def explain_skip(ends: Sequence[End], options: Mapping[str, Any]) -> str:
    """Return which of the parts are the reason that nothing runs."""
    return cut("; ".join(end.text for end in ends if not _fits(options, end)), REASON_SHOWN)


def is_bad(ends: Sequence[End], options: Mapping[str, Any]) -> bool:
    """Return whether people should know that nothing runs after these ends.

    They need not know that a part has ended well of which only the failure matters.
    """
    return any(end.bad for end in ends if not _fits(options, end))


def write_payload(ends: Sequence[End], results: Mapping[str, str | None], skip: Mapping[str, Any] | None = None) -> str:
    """Return the payload of a firing: for each part its title, outcome and result, and what is known about a skip."""
    room = PAYLOAD_ROOM // max(1, len(ends))
    parts = [
        {
            **({"automation_id": end.part} if not end.part.startswith(TAG) else {"tag": end.part.removeprefix(TAG)}),
            "title": end.title,
            "outcome": end.outcome,
            "task_id" if end.id.startswith("t_") else "firing_id": end.id,
            **({"why": end.why} if end.why else {}),
            "result": cut(results.get(end.id) or "", room),
        }
        for end in ends
    ]
    return json.dumps({"parts": parts, **(skip or {})}, ensure_ascii=False, indent=1)


def read_skip(payload: str | None, title: str) -> tuple[tuple[str, ...], bool]:
    """Return the titles of what did not run together with a skipped firing, and whether people should know of it."""
    try:
        data = json.loads(payload or "{}")
    except ValueError:  # it was too long, and its end is missing
        data = {}
    return (*(str(name) for name in data.get("not_run", ())), title), data.get("bad") is not False


def write_notice(title: str, reason: str, not_run: Sequence[str], automation_id: str) -> str:
    """Return the notice at the end of a chain of which a part did not run."""
    names = ", ".join(dict.fromkeys((*not_run, title)))
    hint = f"Show it: midwatch automation chain {automation_id}"
    return f"Chain ended early: {title}\n{reason}\nDid not run: {names}\n{hint}"
