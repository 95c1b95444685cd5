"""Test functions and programs for ended tasks: they are called for every task at least once, also after a restart, and
their failures are contained.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from midwatch.desk.config import Settings
from midwatch.domain.task import Task
from midwatch.runtime.runtime import Runtime
from servers import eventually


async def noop(prompt: str) -> str:
    return prompt.upper()


async def test_a_function_is_called_for_every_end_also_for_missed_ones(home: Path) -> None:
    reports: list[str] = []

    async def report(task: Task) -> None:
        reports.append(f"{task.prompt} {task.status}")

    async with Runtime.open(home, agents={"it": noop}) as desk:
        before = await desk.tasks.submit("before", agent="it")
        await desk.tasks.wait(before.id)
        await desk.task_ends.add("mine", report)
        first = await desk.tasks.submit("first", agent="it")
        await desk.tasks.wait(first.id)
        assert await eventually(lambda: reports == ["first done"])
    async with Runtime.open(home, agents={"it": noop}) as desk:
        away = await desk.tasks.submit("away", agent="it")
        await desk.tasks.wait(away.id)
    async with Runtime.open(home, agents={"it": noop}) as desk:
        await desk.task_ends.add("mine", report)
        assert await eventually(lambda: reports == ["first done", "away done"])


async def test_a_failing_function_is_skipped(home: Path) -> None:
    prompts: list[str] = []

    async def report(task: Task) -> None:
        prompts.append(task.prompt)
        if task.prompt == "one":
            raise RuntimeError("no")

    async with Runtime.open(home, agents={"it": noop}) as desk:
        await desk.task_ends.add("mine", report)
        for prompt in ("one", "two"):
            await desk.tasks.wait((await desk.tasks.submit(prompt, agent="it")).id)
        assert await eventually(lambda: prompts == ["one", "two"])


async def test_a_program_gets_the_task_on_its_standard_input(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "told"
    script = f"import os, sys; open({str(file)!r}, 'a').write(sys.stdin.read() + os.environ['MIDWATCH_STATUS'] + '\\n')"
    settings = Settings.load(home, task_end_program=[sys.executable, "-c", script], detect_agents=False)
    async with Runtime.open(settings=settings, agents={"it": noop}) as desk:
        task = await desk.tasks.submit("x", agent="it")
        await desk.tasks.wait(task.id)
        assert await eventually(lambda: file.exists() and file.read_text().endswith("done\n"))
    received_task = json.loads(file.read_text().removesuffix("done\n"))
    assert (received_task["id"], received_task["result"]) == (task.id, "X")


async def test_a_missing_program_does_not_stop_the_task(home: Path) -> None:
    settings = Settings.load(home, task_end_program=["/does/not/exist"], detect_agents=False)
    async with Runtime.open(settings=settings, agents={"it": noop}) as desk:
        tasks = [await desk.tasks.submit(str(n), agent="it") for n in range(3)]
        await asyncio.gather(*(desk.tasks.wait(task.id) for task in tasks))
        last = (await desk.store.read_log_bounds()).last_seq

        async def is_reached() -> bool:
            return (await desk.store.get_cursor("task_end") or 0) >= last

        async with asyncio.timeout(60):
            while not await is_reached():
                await asyncio.sleep(0.05)
