"""Measure what hooks add to a turn: the time of one decision, for a hook in Python and for a program.

    python -m benchmarks.hooks [--calls 1000] [--rounds 5] [--dir /var/tmp]

A real turn asks before each of many tools, one after another. The same turn without a hook is subtracted. The program
is a hook in Python that answers each line at once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.harness import NOISY_CORES, busy_seconds, json_line, percentile, print_table
from midwatch import FunctionAgent, Hook, HookDecision, HookMeta, Runtime, Settings, Turn
from midwatch.domain.tool_call import ToolCall

TARGET_MS = 1.0
PROGRAM = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    result = {"version": 1} if request["method"] == "hello" else {"action": "go_on"}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
ARGUMENTS = {"path": "src/main.py", "text": "x" * 1000}
CALL = ToolCall(tool="write_file", arguments=ARGUMENTS, id="c_1", kind="edit", paths=("src/main.py",))


class GoingOn(Hook):
    """A hook that always goes on."""

    async def before_tool(self, subject: dict[str, Any], meta: HookMeta) -> None:
        """Decide nothing."""


class Changing(Hook):
    """A hook that changes every call, so that each of its decisions is an event."""

    async def before_tool(self, subject: dict[str, Any], meta: HookMeta) -> HookDecision:
        """Change an argument."""
        return HookDecision.change({"arguments": {"text": "y"}})


async def measure(folder: Path, calls: int, hooks: Sequence[object], settings: Sequence[Any] = ()) -> list[float]:
    """Return the time of each call of `before_tool` in one turn, in milliseconds."""
    times: list[float] = []

    async def work(prompt: str, turn: Turn) -> str:
        for number in range(calls + calls // 10):
            began = time.perf_counter()
            await turn.before_tool(CALL, lambda new: CALL._replace(arguments=new))
            if number >= calls // 10:  # the first calls warm up
                times.append((time.perf_counter() - began) * 1e3)
        return "done"

    chosen = Settings.load(folder, detect_agents=False, hooks=list(settings))
    agents = {"loop": FunctionAgent("loop", work, on_loop=True)}
    async with Runtime.open(settings=chosen, agents=agents, hooks=hooks) as desk:
        while any(report.state not in ("ready", "running") for report in desk.hooks.list()):
            await asyncio.sleep(0.01)
        task = await desk.tasks.submit("go", agent="loop")
        ended = await desk.tasks.wait(task.id)
        assert ended.status == "done", ended.error
        assert all(report.failures == 0 for report in desk.hooks.list())
    return times


async def main(calls: int, rounds: int, parent: str) -> None:
    program = {"argv": [sys.executable, "-c", PROGRAM], "name": "program", "seams": ["before_tool"]}
    contenders: dict[str, tuple[Sequence[object], Sequence[Any]]] = {
        "no hook": ((), ()),
        "Python": ((GoingOn(),), ()),
        "Python that changes": ((Changing(),), ()),
        "program": ((), (program,)),
    }
    means: dict[str, list[float]] = {name: [] for name in contenders}
    slow: dict[str, list[float]] = {name: [] for name in contenders}
    began, busy = time.perf_counter(), busy_seconds()
    for _ in range(rounds):
        for name, (hooks, settings) in contenders.items():
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                times = await measure(Path(folder), calls, hooks, settings)
            means[name].append(sum(times) / len(times))
            slow[name].append(percentile(times, 0.99))
    base = percentile(means["no hook"], 0.5)
    rows, figures = [], {"calls": calls, "base_ms": base}
    for name in contenders:
        mean, p99 = percentile(means[name], 0.5), percentile(slow[name], 0.5)
        rows.append([name, f"{mean:.3f}", f"{mean - base:.3f}", f"{p99:.3f}"])
        figures |= {f"{name.replace(' ', '_').lower()}_{word}": value for word, value in (("p99_ms", p99),)}
        figures[f"{name.replace(' ', '_').lower()}_added_ms"] = mean - base
    print_table(["hook", "ms each call", "ms added", "p99 ms"], rows)
    for name in list(contenders)[1:]:
        if (added := figures[f"{name.replace(' ', '_').lower()}_added_ms"]) >= TARGET_MS:
            print(f"MISSED: {name} adds {added:.2f} ms to a call, the target is less than {TARGET_MS:g} ms.")
    others = (busy_seconds() - busy) / (time.perf_counter() - began) - 1
    if others > NOISY_CORES:
        print(f"DISTURBED: other processes used about {others:.2f} cores.")
    print(json_line(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default="/var/tmp")
    chosen = parser.parse_args()
    uvloop.run(main(chosen.calls, chosen.rounds, chosen.dir))
