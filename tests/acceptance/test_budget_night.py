"""Test a task that reaches its budget at night: it waits as a question, also after a crash, and goes on at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fakes.model_server import serve
from servers import Server, until

CONFIG = """
detect_agents = false
shutdown_grace = 0

[agents.it]
kind = "llm"
model = "openai:fake"
base_url = "{url}/v1"
mcp = {{ tools = {{ command = ["sh", "-c", "echo started >> {home}/starts; exec {python} {mcp}"] }} }}
"""
MCP = Path(__file__).parents[1] / "fakes/mcp_server.py"
SCRIPT = "".join('[[tool nothing {"n": 1}]]' for _ in range(9))


async def test_a_budget_question_survives_a_crash_and_the_work_goes_on_after_the_answer(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with serve() as (url, model):
        (home / "midwatch.toml").write_text(CONFIG.format(url=url, home=home, python=sys.executable, mcp=MCP))
        server = Server(home, OPENAI_API_KEY="none")
        await server.start()
        try:
            async with server.client() as http:
                body = {"prompt": SCRIPT, "agent": "it", "budget": {"steps": 4}}
                task = (await http.post("/tasks", json=body)).json()
                assert task["on_budget"] == "ask", "a person submitted it"

                async def asked() -> Any:
                    pending = (await http.get("/approvals")).json()["approvals"]
                    return pending[0] if len(pending) == 1 else None

                first = await until(asked)
            calls = len(model.requests)
            await server.kill()
            await server.start()
            async with server.client() as http:

                async def asked_again() -> Any:
                    pending = (await http.get("/approvals")).json()["approvals"]
                    return pending[0] if [one["id"] for one in pending] not in ([], [first["id"]]) else None

                second = await until(asked_again)
                assert (await http.get(f"/approvals/{first['id']}")).json()["status"] == "expired"
                assert len((await http.get("/approvals")).json()["approvals"]) == 1
                assert len(model.requests) == calls, "no call is made while it waits"
                starts = (home / "starts").read_text().split()
                assert len(starts) == 2, "the new attempt is ready before it asks, so it goes on soon"
                answer = {"choice": "raise by 100 %"}
                assert (await http.post(f"/approvals/{second['id']}/approve", json=answer)).status_code == 200
                await model.until(lambda current: len(current.requests) > calls)
                account = (await http.get(f"/budgets/{task['id']}")).json()
                assert account["limits"] == {"steps": 8}
                answered = (await http.get(f"/approvals/{second['id']}")).json()
                assert (answered["answered_by"], answered["answer"]) == ("owner", "raise by 100 %")
        finally:
            await server.stop()
