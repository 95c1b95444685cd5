"""Test a crash at many writes of a chain of automations: no part is lost, and none runs twice."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from crashing import crash_at_every_write, run_crashes
from midwatch import Runtime, Settings
from midwatch.base.errors import AgentError
from midwatch.domain.agent import Turn
from midwatch.domain.automation import Automation
from midwatch.domain.event import EventFilter
from midwatch.stores.sqlite import SqliteStore
from midwatch.testing import ScriptedAgent
from servers import until

LINKS = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["b", "c"]}
OUTCOMES = {"d": ["ok"], "e": ["any"]}


async def run_scenario(home: Path, name: str) -> None:
    """Run a chain with two branches, or continue it. The branch c fails; d needs both, and e runs in any case."""

    async def work(turn: Turn) -> str:
        if turn.prompt.startswith("c"):
            raise AgentError("no luck")
        return "ok"

    agents = {"it": ScriptedAgent(work, name="it")}
    settings = Settings.load(home, shutdown_grace=0, detect_agents=False)
    async with Runtime.open(settings=settings, agents=agents) as desk, asyncio.timeout(60):
        known = {automation.title: automation for automation in await desk.automations.list()}
        for title, before in LINKS.items():
            if title not in known:
                link = [{"kind": "webhook", "sign": "github"}]
                if before:
                    link = [{"kind": "after", "automations": before, "outcomes": OUTCOMES.get(title, ["ok"])}]
                known[title] = await desk.automations.create(
                    title, title=title, agent="it", triggers=link, route="console", on_crash="rerun"
                )
        if not await desk.automations.history(known["a"].id):
            await desk.automations.run(known["a"].id)

        async def has_ended(title: str) -> bool:
            firings = await desk.triggers.firings(known[title].id)
            runs = await desk.automations.history(known[title].id)
            return bool(firings) and firings[0].status != "pending" and not any(run.open for run in runs)

        for title in ("d", "e"):
            await until(lambda title=title: has_ended(title))


@pytest.mark.timeout(240)
async def test_a_crash_at_a_write_neither_loses_nor_doubles_a_part(tmp_path: Path) -> None:
    for crash_at in await run_crashes(__file__, str(tmp_path)):
        await check_outcome(tmp_path / str(crash_at))


async def check_outcome(home: Path) -> None:
    """Check the data that a crashed process and its successor left."""
    store = await SqliteStore.open(home / "midwatch.db")
    try:
        automations: dict[str, Automation] = {each.title: each for each in await store.list_automations()}
        runs = {title: await store.list_runs(automations[title].id) for title in LINKS}
        (skipped,) = await store.list_firings(automations["d"].id)
        (started,) = await store.list_firings(automations["e"].id)
        notices = [each.notice for each in await store.list_deliveries(limit=100)]
        triggered = await store.read_events(0, EventFilter(kinds=("automation_triggered",)), 100)
    finally:
        await store.close()
    assert {title: len(each) for title, each in runs.items()} == {"a": 1, "b": 1, "c": 1, "d": 0, "e": 1}
    assert len(triggered) == 4
    assert (skipped.status, skipped.reason) == ("skipped", "c failed")
    assert sum(notice.startswith("chain_ended") for notice in notices) == 1
    parts = json.loads(started.payload or "")["parts"]
    assert [part["outcome"] for part in parts] == ["ok", "failed"]
    assert skipped.chain_id == started.chain_id == runs["a"][0].id


async def test_events_are_followed_only_while_a_trigger_waits_for_them(tmp_path: Path) -> None:
    async def work(turn: Turn) -> str:
        return "ok"

    settings = Settings.load(tmp_path, shutdown_grace=0, detect_agents=False)
    async with Runtime.open(settings=settings, agents={"it": ScriptedAgent(work, name="it")}) as desk:

        def list_followed() -> list[tuple[str, ...]]:
            return [each.which.kinds for each in desk.subscriptions.list() if each.name == "triggers"]

        before = await desk.tasks.submit("x", agent="it")
        await desk.tasks.wait(before.id)
        assert list_followed() == []
        trigger = {"kind": "event", "kinds": ["task_finished"]}
        automation = await desk.automations.create("x", agent="it", triggers=[trigger])
        await until(lambda: list_followed() == [("task_finished",)])
        task = await desk.tasks.submit("x", agent="it")
        await desk.tasks.wait(task.id)
        await until(lambda: has_runs(desk, automation.id))
        (firing,) = await desk.triggers.firings(automation.id)
        assert json.loads(firing.payload or "")["task_id"] == task.id
        await desk.automations.delete(automation.id)
        await until(lambda: list_followed() == [])


async def has_runs(desk: Runtime, automation_id: str) -> bool:
    return bool(await desk.automations.history(automation_id))


if __name__ == "__main__":
    crash_at_every_write(run_scenario, Path(sys.argv[1]), "chain", "before", every=3)
