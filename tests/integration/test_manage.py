"""Test who may cancel and retry whose tasks: by the mode of the automation or goal, otherwise by the desk's setting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from midwatch.domain.identity import OWNER, Actor
from midwatch.domain.task_store import TaskFilter
from midwatch.stores.verbs import listing
from serving import Served, client, serve_agents

MODES = [("creator_only", 403), ("scope_all", 200)]


async def hold(prompt: str) -> str:
    await asyncio.Event().wait()
    return ""


async def client_of_operator(served: Served, name: str) -> httpx2.AsyncClient:
    """Return a client of an operator."""
    _, secret = await served.runtime.tokens.create(name, "operator", by=OWNER)
    return client(served.url, secret)


@pytest.mark.parametrize(("mode", "status"), MODES)
async def test_a_run_has_the_permissions_of_its_automation(home: Path, mode: str, status: int) -> None:
    async with serve_agents(home, {"it": hold}) as served:
        desk = served.runtime
        automation = await desk.automations.create("x", agent="it", every=3600, actor="ann", manage_mode=mode)
        run = await desk.automations.run(automation.id)
        async with await client_of_operator(served, "bob") as bob, await client_of_operator(served, "ann") as ann:
            assert (await bob.post(f"/tasks/{run.id}/cancel")).status_code == status
            if status == 403:
                assert (await ann.post(f"/tasks/{run.id}/cancel")).status_code == 200


@pytest.mark.parametrize(("mode", "status"), MODES)
async def test_a_step_has_the_permissions_of_its_goal(home: Path, mode: str, status: int) -> None:
    async with serve_agents(home, {"it": hold}) as served:
        desk = served.runtime
        goal = await desk.goals.create("x", agent="it", actor="ann", manage_mode=mode)
        await served.until("goal_step")
        (step,) = await desk.goals.steps(goal.id)
        async with await client_of_operator(served, "bob") as bob:
            assert (await bob.post(f"/tasks/{step.id}/cancel")).status_code == status


@pytest.mark.parametrize(("mode", "status"), MODES)
async def test_permissions_for_a_task_follow_the_setting(home: Path, mode: str, status: int) -> None:
    async with (
        serve_agents(home, {"it": hold}, manage_tasks=mode) as served,
        await client_of_operator(served, "bob") as bob,
        await client_of_operator(served, "ann") as ann,
    ):
        task = (await ann.post("/tasks", json={"prompt": "x", "delay": 3600})).json()
        assert (await bob.post(f"/tasks/{task['id']}/cancel")).status_code == status
        if status == 403:
            assert (await ann.post(f"/tasks/{task['id']}/cancel")).status_code == 200
            assert (await bob.post(f"/tasks/{task['id']}/retry")).status_code == 403
        assert (await served.http.post(f"/tasks/{task['id']}/retry")).status_code == 201


async def test_an_actor_of_one_session_can_read_past_a_page_that_ends_early(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_agents(home, {"it": hold}) as served:
        tasks = served.runtime.tasks
        submitted = [await tasks.submit(f"{n}", agent="it", session_key="chat:1", delay=3600) for n in range(13)]
        await tasks.cancel(submitted[0].id)
        monkeypatch.setattr(listing, "MOST_LOOKED", 5)
        which, found = TaskFilter(statuses=("cancelled",)), list[str]()
        for _ in range(len(submitted)):
            page = await tasks.list(which, actor=Actor("agentapi", "operator", session="chat:1"))
            found += [task.id for task in page]
            if page.next is None:
                break
            which = replace(which, before=page.next)
        assert found == [submitted[0].id]
