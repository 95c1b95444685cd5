"""Test that programs go on in the same conversation after a spent budget has interrupted them and people raised it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings
from midwatch.domain.approval import Approval
from midwatch.domain.event import EventFilter
from midwatch.programs.guard import guard
from servers import until

FAKES = Path(__file__).parents[1] / "fakes"
ITEMS = "one two pause four five"
WORKER = """
import sys, time
from pathlib import Path
done = Path(sys.argv[1])
while True:
    try:
        said = input("> ")
        for item in said.rpartition(":")[2].split():
            if done.exists() and item in done.read_text().split():
                continue
            print("works on", item, flush=True)
            while item == "pause" and not done.with_name("answered").exists():
                time.sleep(0.01)
            with done.open("a") as file:
                print(item, file=file)
        if ":" in said:
            print("all is done", flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""
PROGRAMS: dict[str, tuple[str, dict[str, float]]] = {
    "acp": (f"[[work {ITEMS}]]", {"steps": 2}),
    "headless": (f"do: {ITEMS}", {"steps": 2}),
    "terminal": (f"do: {ITEMS}", {"seconds": 1}),
}
"""For each kind of agent a prompt, and a budget that is spent in the middle of the work."""


def configure(folder: Path) -> dict[str, Any]:
    """Return agents of each kind that note the finished items in the file `done`."""
    done = str(folder / "done")
    worker = [sys.executable, "-c", WORKER, done]
    return {
        "acp": {"kind": "acp", "argv": [sys.executable, str(FAKES / "acp_agent.py"), "--memory", str(folder)]},
        "headless": {
            "kind": "headless",
            "profile": "claude",
            "argv": [sys.executable, str(FAKES / "cli_agent.py"), "work", done],
        },
        "terminal": {
            "kind": "terminal",
            "argv": [*worker, "{thread}"],
            "resume_argv": [*worker, "{thread}", "again"],
            "thread": "uuid",
            "prompt": "^> $",
        },
    }


@pytest.mark.parametrize("answer", ["raise by 100 %", "stop"])
@pytest.mark.parametrize("kind", PROGRAMS)
async def test_a_program_goes_on_in_its_conversation_after_its_budget_is_raised(
    tmp_path: Path, kind: str, answer: str
) -> None:
    prompt, budget = PROGRAMS[kind]
    settings = Settings.load(
        tmp_path / "home", detect_agents=False, shutdown_grace=0, agents=configure(tmp_path), on_budget="ask"
    )
    async with Runtime.open(settings=settings) as desk:
        task = await desk.tasks.submit(prompt, agent=kind, budget=budget)
        ended = asyncio.create_task(desk.tasks.wait(task.id))
        threads, asked = list[str | None](), list[Approval]()

        async def read_thread() -> str | None:
            session = await desk.store.get_session(task.session_key)
            return session.thread_id if session is not None else None

        async def answer_next() -> bool:
            for question in await desk.approvals.list():
                asked.append(question)
                threads.append(await read_thread())
                (tmp_path / "answered").touch()
                await desk.approvals.answer(question.id, answer)
            return ended.done()

        await until(answer_next)
        done = await ended
        finished = (tmp_path / "done").read_text().split()
        if answer == "stop":
            assert (done.outcome, done.attempt, len(asked)) == ("budget", 1, 1)
            assert finished == ITEMS.split()[: len(finished)] and len(finished) < 5
        else:
            assert (done.outcome, done.attempt) == ("ok", len(asked) + 1), done.error
            assert finished == ITEMS.split(), "nothing was done twice"
            assert "all is done" in (done.result or "")
        turns = await desk.store.read_events(0, EventFilter(kinds=("task_interrupted",), task_id=task.id))
        assert [event.payload["reason"] for event in turns] == ["budget"] * (done.attempt - 1)
        assert {*threads, await read_thread()} == {threads[0]} != {None}, "it is the same conversation"
    assert guard.pid is None, "a process group was left behind"
