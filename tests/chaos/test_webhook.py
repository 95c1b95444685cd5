"""Test that a delivery starts exactly one run, although the server is killed before the run starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2

from servers import Server, until
from signing import sign_github

CONFIG = """
detect_agents = false
default_agent = "waits"

[agents.waits]
kind = "command"
argv = ["sh", "-c", "echo start >> {folder}/oracle; while [ ! -e {folder}/gate ]; do sleep 0.05; done; echo ok"]
on_crash = "rerun"
"""


async def test_a_delivery_starts_one_run_although_the_server_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG.format(folder=tmp_path))
    server = Server(home)
    await server.start()
    try:
        async with server.client() as http:
            trigger = {"kind": "webhook", "sign": "github"}
            made = (await http.post("/automations", json={"prompt": "look", "triggers": [trigger]})).json()
            (webhook,) = made["webhooks"]
            assert webhook["url"].startswith(server.url)
            path = f"/automations/{made['id']}"

            async def deliver(number: int) -> httpx2.Response:
                body = json.dumps({"number": number}).encode()
                headers = sign_github(webhook["secret"], body, delivery=f"d{number}")
                return await http.post(webhook["url"], content=body, headers=headers)

            async def list_started() -> list[dict[str, Any]]:
                firings = (await http.get(f"{path}/firings")).json()["firings"]
                return [firing for firing in firings if firing["status"] == "started"]

            await deliver(1)
            await until(lambda: (tmp_path / "oracle").exists())
            stored = await deliver(2)
            assert stored.json()["status"] == "pending"
            await server.kill()  # the firing waits for the open run
            await server.start()
            again = await deliver(2)
            assert (again.status_code, again.json()["firing_id"]) == (200, stored.json()["firing_id"])
            (tmp_path / "gate").touch()

            async def have_started(count: int) -> bool:
                return len(await list_started()) == count

            await until(lambda: have_started(2))
            assert (await deliver(3)).status_code == 202
            await server.kill()  # at once, whether or not its run has started
            await server.start()
            await until(lambda: have_started(3))
            assert {(await deliver(number)).status_code for number in (1, 2, 3)} == {200}

            async def have_ended() -> bool:
                runs = (await http.get(f"{path}/history")).json()["runs"]
                return all(run["status"] == "done" for run in runs)

            await until(have_ended)
            runs = (await http.get(f"{path}/history")).json()["runs"]
            assert len(runs) == 3
            assert {run["task_id"] for run in runs} == {firing["task_id"] for firing in await list_started()}
    finally:
        await server.stop()
