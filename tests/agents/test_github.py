"""Test webhooks with an emulator of GitHub: it registers our address, signs its deliveries itself, and a run starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from agents.rig import program
from midwatch.agents.function import FunctionAgent
from postgres import free_port
from servers import PATIENCE, until
from serving import Served, serve_agents

EMULATOR = "emulate"


async def echo(prompt: str) -> str:
    return prompt


@pytest.fixture
def installed() -> None:
    """Skip the test if the emulator is not installed. This replaces the check for an agent."""
    if program(EMULATOR) is None:
        pytest.skip("emulate is not installed: run tests/agents/install")


@contextlib.asynccontextmanager
async def start_github() -> AsyncIterator[httpx2.AsyncClient]:
    """Start the emulator, and yield a client with the token of its administrator."""
    port, path = free_port(), program(EMULATOR)
    assert path is not None
    env = {**os.environ, "PATH": f"{Path(path).parent}:{os.environ['PATH']}"}  # it needs the node that is beside it
    process = await asyncio.create_subprocess_exec(
        str(path), "start", "--service", "github", "--port", str(port), env=env, stdout=asyncio.subprocess.DEVNULL
    )
    address, token = f"http://127.0.0.1:{port}", {"authorization": "Bearer test_token_admin"}
    try:
        async with httpx2.AsyncClient(base_url=address, headers=token, timeout=PATIENCE, trust_env=False) as github:

            async def answers() -> bool:
                with contextlib.suppress(httpx2.HTTPError):
                    return (await github.get("/user")).status_code == 200
                return False

            await until(answers)
            yield github
    finally:
        process.terminate()
        await process.wait()


async def list_firings(served: Served, automation_id: str) -> list[dict[str, str]]:
    """Return the firings of an automation, newest first."""
    firings: list[dict[str, str]] = (await served.get(f"/automations/{automation_id}/firings"))["firings"]
    return firings


async def test_an_issue_and_a_push_on_github_start_runs(home: Path) -> None:
    agents = {"echo": FunctionAgent("echo", echo)}
    async with serve_agents(home, agents) as served, start_github() as github:
        trigger = {"kind": "webhook", "sign": "github", "filter": ["repository.name = sea"]}
        made = await served.post("/automations", {"prompt": "look", "triggers": [trigger]})
        (webhook,) = made["webhooks"]
        assert (await github.post("/user/repos", json={"name": "sea", "auto_init": True})).status_code == 201
        config = {"url": webhook["url"], "content_type": "json", "secret": webhook["secret"]}
        hook = {"name": "web", "active": True, "events": ["push", "issues"], "config": config}
        assert (await github.post("/repos/admin/sea/hooks", json=hook)).status_code == 201

        await github.post("/repos/admin/sea/issues", json={"title": "The mast is broken"})
        (opened,) = await until(lambda: list_firings(served, made["id"]))
        change = {"message": "Mend the mast", "content": "aGk="}
        assert (await github.put("/repos/admin/sea/contents/mast.txt", json=change)).status_code == 201

        async def have_started() -> list[dict[str, str]] | None:
            firings = await list_firings(served, made["id"])
            return firings if [firing["status"] for firing in firings] == ["started"] * 2 else None

        pushed, opened = await until(have_started)
        assert opened["summary"] == "issue opened #1 by admin"
        assert pushed["summary"].startswith("push to main by admin (1 commit")
        prompts = [(await served.wait_for_end(firing["task_id"]))["prompt"] for firing in (opened, pushed)]
        assert '"The mast is broken"' in prompts[0] and '"Mend the mast"' in prompts[1]
        deliveries = (await github.get("/repos/admin/sea/hooks/1/deliveries")).json()
        assert {delivery["status_code"] for delivery in deliveries} <= {200, 202}

        wrong = {**hook, "config": {**config, "secret": "another secret of ours"}}
        await github.post("/repos/admin/sea/hooks", json=wrong)
        await github.post("/repos/admin/sea/issues", json={"title": "The sail is torn"})

        async def find_refused() -> list[int]:
            found = (await github.get("/repos/admin/sea/hooks/2/deliveries")).json()
            return [delivery["status_code"] for delivery in found]

        assert set(await until(find_refused)) == {401}
        await until(lambda: list_third(served, made["id"]))
        assert len(await list_firings(served, made["id"])) == 3


async def list_third(served: Served, automation_id: str) -> bool:
    """Return whether the trigger has fired three times."""
    return len(await list_firings(served, automation_id)) == 3
