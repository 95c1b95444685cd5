"""Draws a chain: automations that start after each other, as an indented tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from midwatch.cli import output as out

if TYPE_CHECKING:
    from midwatch.wire.automations import NodeInfo


def draw_chain(nodes: Sequence[NodeInfo], chosen: str) -> list[str]:
    """Return a line for each automation. One that starts after several is described below the last of them."""
    by_id = {node["id"]: node for node in nodes}
    lines: list[str] = []
    for node in nodes:
        if not node["after"]:
            _draw(node, by_id, 0, lines, chosen)
    return lines


def _draw(node: NodeInfo, by_id: Mapping[str, NodeInfo], depth: int, lines: list[str], chosen: str) -> None:
    mark = "* " if chosen in (node["id"], node["title"]) else ""
    lines.append("  " * depth + f"{mark}{out.shorten(node['title'], 40)}  {describe_last(node)}  {node['id']}")
    for below in by_id.values():
        if node["id"] in below["after"]:
            last = max(below["after"], key=lambda key: (by_id[key]["level"], key))
            if last == node["id"]:
                _draw(below, by_id, depth + 1, lines, chosen)
            else:
                lines.append("  " * (depth + 1) + f"{out.shorten(below['title'], 40)}  (below)")


def describe_last(node: NodeInfo) -> str:
    """Return the last outcome of an automation in a few words."""
    last = node["last"]
    if last is None:
        return f"no run yet{'' if node['status'] == 'active' else ', ' + node['status']}"
    why = f": {out.shorten(last['why'], 60)}" if last["why"] else ""
    paused = "" if node["status"] == "active" else f", {node['status']}"
    return f"{last['outcome']} {out.format_time(last['at'])}{why}{paused}"
