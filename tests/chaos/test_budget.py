"""Test processes that work on random trees and are killed at random points: each limit holds, and the log agrees."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import budget_desk
from budget_desk import CALL
from midwatch.domain.event import EventFilter
from midwatch.domain.store import Store
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sqlite import SqliteStore
from servers import until

TREES = 10
Tree = dict[str, Any]


def grow(rng: random.Random, depth: int = 0) -> Tree:
    """Return a random tree of calls, parallel work and transfers."""
    node: Tree = {"calls": rng.randint(0, 5)}
    if depth < 3 and rng.random() < 0.9 - depth / 4:
        node["parallel"] = [grow(rng, depth + 1) for _ in range(rng.randint(1, 4))]
    if depth < 3 and rng.random() < 0.3:
        node["transfer"] = grow(rng, depth + 1)
    return node


def count_calls(node: Tree) -> int:
    """Return how many calls a tree makes without a limit."""
    parts = [*node.get("parallel", ()), *([node["transfer"]] if "transfer" in node else [])]
    return int(node["calls"]) + sum(map(count_calls, parts))


def count_flight(node: Tree) -> int:
    """Return how many calls of a tree run at the same time at most."""
    parallel = sum(map(count_flight, node.get("parallel", ())))
    return max(1, parallel, count_flight(node["transfer"]) if "transfer" in node else 0)


def choose_limits(rng: random.Random, tree: Tree) -> dict[str, int]:
    """Return limits that the tree reaches, or nearly reaches."""
    most = max(1, int(count_calls(tree) * rng.uniform(0.5, 1.1)))
    return rng.choice([{"steps": most}, {"tokens": most * CALL}, {"steps": most, "tokens": most * CALL}])


class Crash:
    """Processes that work on the same trees. One of them is killed while it works, and started again."""

    def __init__(self, folder: Path, db: str | None, seed: int) -> None:
        self.folder = folder
        self.deaths = 0
        self.processes = 1
        self.rng = random.Random(seed)
        self.wishes = [(tree, choose_limits(self.rng, tree)) for tree in (grow(self.rng) for _ in range(TREES))]
        self._db = db
        self._notes = folder / "notes"
        self._notes.touch()
        (folder / "trees").write_text("".join(f"{json.dumps(wish)}\n" for wish in self.wishes))

    async def start(self, name: str) -> asyncio.subprocess.Process:
        """Start a process and wait until it is ready."""
        home = self.folder / name
        (home / "ready").unlink(missing_ok=True)
        command = (sys.executable, budget_desk.__file__, self.folder, home, *([self._db] if self._db else []))
        process = await asyncio.create_subprocess_exec(*map(str, command), stderr=asyncio.subprocess.PIPE)
        await until(lambda: process.returncode is not None or (home / "ready").exists())
        return process

    def count(self, column: int) -> Counter[str]:
        """Count the calls: column 0 is their account, column 1 their process."""
        return Counter(line.split()[column] for line in self._notes.read_text().splitlines())

    async def end(self, process: asyncio.subprocess.Process) -> None:
        error = (await asyncio.wait_for(process.communicate(), 120))[1].decode()
        assert process.returncode == 0, error

    async def run(self, beside: int, deaths: int) -> None:
        """Kill one of the processes several times, each time after some calls of its own; then wait for all."""
        self.processes = 1 + beside
        others = [await self.start(f"other{number}") for number in range(beside)]
        process = await self.start("home")
        try:
            (self.folder / "go").touch()
            for _ in range(deaths):
                await self._kill(process, self.rng.randint(3, 12))
                process = await self.start("home")
            for running in (process, *others):
                await self.end(running)
        finally:
            for running in (process, *others):
                if running.returncode is None:
                    running.kill()
                    await running.wait()

    async def _kill(self, process: asyncio.subprocess.Process, calls: int) -> None:
        ended = asyncio.create_task(process.wait())
        await until(lambda: ended.done() or self.count(1)[str(process.pid)] >= calls)
        await asyncio.sleep(self.rng.uniform(0.0, 0.01))  # a random moment, not synchronisation
        if process.returncode is None:
            process.kill()
            self.deaths += 1
        await ended

    async def check(self, store: Store) -> None:
        """Check each account against its limits, the calls that were made, and the log."""
        calls, reached = self.count(0), 0
        accounts = await store.list_accounts()
        assert len(accounts) == TREES
        for account in accounts:
            root = await store.get_task(account.id)
            assert root is not None
            flight = count_flight(json.loads(root.prompt)) * self.processes
            lost, limits = self.deaths * flight, account.budget
            assert 0 <= account.steps - calls[root.id] <= lost, "each call was reserved, and few others"
            assert account.steps <= (limits.steps or account.steps), "the limit of steps is never exceeded"
            most = (limits.tokens or account.tokens + 1) - 1
            assert account.tokens <= most + flight * CALL, "only calls in flight exceed the limit"
            assert 0 <= calls[root.id] * CALL - account.tokens <= lost * CALL, "only calls in flight are not known"
            logged = 0
            for member in await store.list_account_tasks(root.id):
                for answer in await store.read_events(0, EventFilter(kinds=("llm_response",), task_id=member.id)):
                    logged += (answer.payload["usage"] or {}).get("input_tokens", 0)
            assert account.tokens == logged, "the account and the log do not differ"
            reached += limits.over(account.spent, "task") is not None
        assert reached >= TREES / 3, "many limits were reached"
        await store.close()


async def test_a_process_is_killed_while_its_trees_spend(tmp_path: Path) -> None:
    crash = Crash(tmp_path, None, 19)
    await crash.run(beside=0, deaths=4)
    assert crash.deaths == 4
    await crash.check(await SqliteStore.open(tmp_path / "home" / "midwatch.db"))


@pytest.mark.timeout(240)
async def test_two_processes_spend_the_same_budgets_and_one_is_killed(tmp_path: Path, database: str) -> None:
    crash = Crash(tmp_path, database, 20)
    await crash.run(beside=1, deaths=1)
    assert crash.deaths == 1
    assert len(crash.count(1)) >= 2, "both processes spent"
    await crash.check(await PostgresStore.open(database))
