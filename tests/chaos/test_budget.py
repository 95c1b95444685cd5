"""Test processes that spend one budget and are killed at random points: the limit holds, and the log agrees."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

import budget_desk
from midwatch.domain.event import EventFilter
from midwatch.domain.store import Store
from midwatch.stores.postgres import PostgresStore
from midwatch.stores.sqlite import SqliteStore
from servers import until

LIMIT = 60
DEATHS = 4


async def start(home: Path, notes: Path, db: str | None) -> asyncio.subprocess.Process:
    command = (sys.executable, budget_desk.__file__, home, notes, LIMIT, *([db] if db else []))
    return await asyncio.create_subprocess_exec(*map(str, command), stderr=asyncio.subprocess.PIPE)


async def end(process: asyncio.subprocess.Process, *, kill: bool) -> None:
    if kill and process.returncode is None:
        process.kill()
    error = (await asyncio.wait_for(process.communicate(), 120))[1].decode()
    assert kill or process.returncode == 0, error


async def spend_and_die(folder: Path, db: str | None, beside: int, rng: random.Random) -> tuple[int, int]:
    """Run processes that share a budget, kill one of them several times. Return the calls and the deaths."""
    notes = folder / "notes"
    notes.touch()
    deaths = 0
    others = [await start(folder / f"other{n}", notes, db) for n in range(beside)]
    try:
        for target in sorted(rng.sample(range(5, LIMIT - 10), DEATHS)):
            process = await start(folder / "home", notes, db)
            ended = asyncio.create_task(process.wait())

            def reached(most: int = target, ended: asyncio.Task[int] = ended) -> bool:
                return ended.done() or len(notes.read_text().splitlines()) >= most

            await until(reached)
            await asyncio.sleep(rng.uniform(0.0, 0.02))  # a random moment, not synchronisation
            deaths += process.returncode is None
            await end(process, kill=True)
            await ended
        await end(await start(folder / "home", notes, db), kill=False)
        for other in others:
            await end(other, kill=False)
    finally:
        for other in others:
            if other.returncode is None:
                other.kill()
                await other.wait()
    return len(notes.read_text().splitlines()), deaths


async def check(store: Store, calls: int, deaths: int) -> None:
    """Check the account against the calls that were made, and against the log."""
    (account,) = await store.list_accounts()
    assert calls <= account.steps <= LIMIT, "each call was reserved first, and the limit was never exceeded"
    answers = await store.read_events(0, EventFilter(kinds=("llm_response",)))
    total = sum((answer.payload["usage"] or {}).get("input_tokens", 0) for answer in answers)
    assert account.tokens == total, "the account and the log do not differ"
    lost = calls * budget_desk.CALL - account.tokens
    assert 0 <= lost <= deaths * budget_desk.PARTS * budget_desk.CALL, "only calls in flight are not known"
    await store.close()


async def test_a_process_is_killed_while_its_tree_spends(tmp_path: Path) -> None:
    calls, deaths = await spend_and_die(tmp_path, None, 0, random.Random(19))
    assert deaths >= 1
    await check(await SqliteStore.open(tmp_path / "home" / "midwatch.db"), calls, deaths)


@pytest.mark.timeout(240)
async def test_two_processes_spend_one_budget_and_one_is_killed(tmp_path: Path, database: str) -> None:
    calls, deaths = await spend_and_die(tmp_path, database, 1, random.Random(20))
    await check(await PostgresStore.open(database), calls, deaths)
