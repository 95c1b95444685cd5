"""Test processes that work on random trees and are killed at random points: each limit holds, and the log agrees."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

import budget_desk
from budget_desk import CALL, SLOTS
from midwatch.domain.event import EventFilter
from midwatch.domain.store import Store
from midwatch.domain.task import Task
from midwatch.domain.task_store import TaskFilter
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
    """Return how many calls of a tree run at the same time at most.

    After a crash a node works again while its parts work.
    """
    parts = sum(map(count_flight, node.get("parallel", ())))
    return max(1 + parts, count_flight(node["transfer"]) if "transfer" in node else 0)


def choose_limits(rng: random.Random, tree: Tree) -> dict[str, int]:
    """Return limits that the tree reaches, or nearly reaches."""
    most = max(1, int(count_calls(tree) * rng.uniform(0.5, 1.1)))
    return rng.choice([{"steps": most}, {"tokens": most * CALL}, {"steps": most, "tokens": most * CALL}])


class SpendingProcesses:
    """Processes that work on the same trees. They are killed in turn while they work, and started again."""

    def __init__(
        self, folder: Path, db: str | None, rng: random.Random, wishes: list[tuple[Tree, dict[str, int]]]
    ) -> None:
        self.folder = folder
        self.deaths = 0
        self._rng = rng
        self._zone = "UTC" if datetime.now(UTC).hour < 23 else "Asia/Tokyo"
        """A time zone where no midnight is near."""
        self._db = db
        self._notes = folder / "notes"
        self._notes.touch()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        (folder / "trees").write_text("".join(f"{json.dumps(wish)}\n" for wish in wishes))

    async def start(self, name: str) -> None:
        """Start a process and wait until it is ready."""
        home = self.folder / name
        (home / "ready").unlink(missing_ok=True)
        command = (sys.executable, budget_desk.__file__, self.folder, home, *([self._db] if self._db else []))
        process = await asyncio.create_subprocess_exec(
            *map(str, command), stderr=asyncio.subprocess.PIPE, env={**os.environ, "TZ": self._zone}
        )
        self._running[name] = process
        await until(lambda: process.returncode is not None or (home / "ready").exists())

    def count(self, column: int) -> Counter[str]:
        """Count the calls: column 0 is their account, column 1 their process."""
        return Counter(line.split()[column] for line in self._notes.read_text().splitlines())

    @asynccontextmanager
    async def work(self, *names: str) -> AsyncIterator[None]:
        """Let processes work inside of an `async with` block, and kill those that still run at its end."""
        try:
            for name in names:
                await self.start(name)
            (self.folder / "go").touch()
            yield
        finally:
            for process in self._running.values():
                if process.returncode is None:
                    process.kill()
                await process.communicate()

    async def run(self, *names: str, kills: int) -> None:
        """Kill the processes in turn, each time after some calls of all of them; then wait for the end of the work."""
        async with self.work(*names):
            for name in islice(cycle(names), kills):
                await self._kill(self._running[name])
                await self.start(name)
            for process in self._running.values():
                error = (await asyncio.wait_for(process.communicate(), 120))[1].decode()
                assert process.returncode == 0, error
        assert self.deaths, "no process was killed during its work"

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Kill a process at a random moment of its work. It ends by itself if no work is left."""
        enough = self.count(1).total() + self._rng.randint(3, 12)
        ended = asyncio.create_task(process.wait())
        await until(lambda: ended.done() or self.count(1).total() >= enough)
        await asyncio.sleep(self._rng.uniform(0.0, 0.01))  # a random moment, not synchronisation
        if process.returncode is None:
            process.kill()
            self.deaths += 1
        await ended

    async def check(self, store: Store) -> None:
        """Check each account against its limits, the calls that were made, and the log."""
        calls, reached = self.count(0), 0
        (day,) = [account for account in await store.list_accounts() if account.scope == "day"]
        accounts = [account for account in await store.list_accounts() if account.scope != "day"]
        assert len(accounts) == TREES
        for name in ("tokens", "steps"):
            spent = sum(getattr(account, name) for account in accounts)
            assert spent == getattr(day, name), "the day and its work do not differ"
        for account in accounts:
            root = await store.get_task(account.id)
            assert root is not None
            nodes, limits = count_flight(json.loads(root.prompt)), account.budget
            flight = min(nodes, len(self._running) * SLOTS)
            lost = self.deaths * min(nodes, SLOTS)
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
        assert reached >= 2, "limits were reached"
        await store.close()


def make_wishes(rng: random.Random) -> list[tuple[Tree, dict[str, int]]]:
    """Return random trees with limits."""
    return [(tree, choose_limits(rng, tree)) for tree in (grow(rng) for _ in range(TREES))]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_processes_that_spend_the_same_budgets_are_killed(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    seed = time.time_ns() % 10**9
    print(f"\nseed {seed}")
    rng, db = random.Random(seed), request.getfixturevalue("database") if kind == "postgres" else None
    spending = SpendingProcesses(tmp_path, db, rng, make_wishes(rng))
    names, kills = (("home", "other"), 2) if db else (("home",), 4)
    await spending.run(*names, kills=kills)
    print(f"{spending.deaths} deaths, calls by process: {[*spending.count(1).values()]}")
    await spending.check(await (PostgresStore.open(db) if db else SqliteStore.open(tmp_path / "home" / "midwatch.db")))


async def test_two_processes_stop_at_the_budget_of_the_day(tmp_path: Path, database: str) -> None:
    """Processes that do not know of each other's calls spend the same day, and no call more."""
    calls = 60
    (tmp_path / "day").write_text(json.dumps({"tokens": calls * CALL}))
    works: list[tuple[Tree, dict[str, int]]] = [({"calls": 5}, {"steps": 99}) for _ in range(40)]
    spending = SpendingProcesses(tmp_path, database, random.Random(), works)
    store = await PostgresStore.open(database)

    async def read_tasks() -> list[Task] | None:
        """Return the tasks when all have ended or wait for midnight."""
        tasks = await store.list_tasks(TaskFilter(limit=100))
        rests = len(tasks) == len(works) and all(not task.open or task.wait == "limit" for task in tasks)
        return tasks if rests else None

    async with spending.work("home", "other"):
        tasks = await until(read_tasks)
    (day,) = [account for account in await store.list_accounts() if account.scope == "day"]
    await store.close()
    assert len(spending.count(1)) == 2, "both processes spent"
    assert day.tokens == spending.count(0).total() * CALL == sum(task.tokens_used or 0 for task in tasks)
    assert calls * CALL <= day.tokens < (calls + 2 * SLOTS) * CALL, "only calls in flight exceed the limit"
    ends = Counter(task.outcome or task.wait for task in tasks)
    assert set(ends) == {"ok", "budget", "limit"}, "work that runs is stopped, and other work waits"
