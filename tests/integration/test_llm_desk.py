"""Test the desk tools: an agent submits tasks, reads them and reports the state of its goal, with the token of its
attempt.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from midwatch import Runtime, Turn
from midwatch.agents.base import BaseAgent
from midwatch.agents.llm.toolkit import ToolOptions, build_toolkit
from midwatch.agents.llm.tools import Toolbox, ToolOutput
from midwatch.domain.agent import AgentTerms
from midwatch.testing import RecordingTurn, ScriptedAgent, result, wait_for
from repositories import a_repository
from serving import Served, serve_agents

SUBMITS = AgentTerms(timeout_seconds=60.0, on_crash="rerun", submits=True)
KIT = build_toolkit(BaseAgent("boss"), ToolOptions(tools=("desk",)))


class Boss(ScriptedAgent):
    """An agent that uses desk tools and records their results."""

    def __init__(self, *calls: tuple[str, Mapping[str, Any]], terms: AgentTerms = SUBMITS) -> None:
        super().__init__(self.work, result("done"), name="boss", terms=terms)
        self.calls = calls
        self.outputs: list[ToolOutput] = []

    async def work(self, turn: Turn) -> None:
        async with KIT(turn) as box:
            for name, arguments in self.calls:
                self.outputs.append(await box.run(name, self.fill_in(arguments), turn))

    def fill_in(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        last = json.loads(self.outputs[-1].text)["id"] if "$last" in arguments.values() else ""
        return {name: last if value == "$last" else value for name, value in arguments.items()}

    def read_result(self, at: int) -> Any:
        output = self.outputs[at]
        assert not output.is_error, output.text
        return json.loads(output.text)


async def run_boss(desk: Runtime, **options: Any) -> None:
    task = await desk.tasks.submit("work", agent="boss", actor="ada", **options)
    assert (await desk.tasks.wait(task.id)).status == "done"


async def test_an_agent_submits_tasks_and_reads_them(tmp_path: Path) -> None:
    boss = Boss(
        ("submit_task", {"prompt": "count", "agent": "worker"}),
        ("get_task", {"id": "$last"}),
        ("list_tasks", {"limit": 5}),
        ("submit_task", {"prompt": "later", "agent": "worker", "delay": "2h"}),
        ("schedule_task", {"prompt": "each day", "cron": "0 9 * * *", "zone": "Europe/Lisbon", "agent": "worker"}),
        ("get_task", {"id": "t_nobody"}),
        ("submit_task", {"prompt": "count", "agent": "nobody"}),
        ("schedule_task", {"prompt": "when?", "agent": "worker"}),
        ("goal_complete", {"evidence": "none"}),
    )
    agents = {"boss": boss, "worker": ScriptedAgent(result("seven"), name="worker")}
    async with Runtime.open(tmp_path / "home", agents=agents) as desk:
        await run_boss(desk, workdir=str(tmp_path), session_key="chat:1")
        task = await desk.tasks.get(boss.read_result(0)["id"])
        assert (task.prompt, task.agent, task.creator, task.workdir) == ("count", "worker", "ada", str(tmp_path))
        assert task.origin_session == "chat:1"
        assert (await desk.tasks.wait(task.id)).result == "seven"
        assert boss.read_result(1)["id"] == task.id
        assert {entry["prompt"] for entry in boss.read_result(2)} == {"count", "work"}
        assert (await desk.tasks.get(boss.read_result(3)["id"])).wait == "delay"
        planned = await desk.automations.get(boss.read_result(4)["id"])
        assert (planned.prompt, planned.creator, planned.workdir) == ("each day", "ada", str(tmp_path))
        assert boss.read_result(4)["next_runs"][0].startswith("20")
        problems = [(output.is_error, output.text) for output in boss.outputs[5:]]
        assert all(wrong for wrong, _ in problems)
        assert [text.partition(" ")[0] for _, text in problems] == ["there", "no", "set", "this"], problems


async def test_an_agent_that_may_not_submit_gets_the_name_of_the_setting(tmp_path: Path) -> None:
    calls = (("submit_task", {"prompt": "count"}), ("schedule_task", {"prompt": "count", "every": "1h"}))
    boss = Boss(*calls, terms=SUBMITS._replace(submits=False))
    async with Runtime.open(tmp_path, agents={"boss": boss}) as desk:
        await run_boss(desk)
        assert (await desk.tasks.summary()).done == 1
        assert not await desk.automations.list()
    assert {output.text for output in boss.outputs} == {
        "agent boss may not submit work; to allow it, set `agents.boss.submits`."
    }


async def test_an_agent_reports_the_state_of_its_goal(tmp_path: Path) -> None:
    boss = Boss(("goal_delay", {"duration": "90m", "reason": "tide"}), ("goal_complete", {"evidence": "seen"}))
    async with Runtime.open(tmp_path, agents={"boss": boss}) as desk:
        goal = await desk.goals.create("reach it", agent="boss")
        async for event in desk.bus.follow(0):
            if event.kind == "goal_completed":
                break
        assert (await desk.goals.get(goal.id)).evidence == "seen"
    assert boss.read_result(0)["id"] == boss.read_result(1)["id"] == goal.id


async def test_without_a_server_the_tools_report_it() -> None:
    turn = RecordingTurn()
    box = Toolbox(KIT.tools)
    output = await box.run("submit_task", {"prompt": "count"}, turn)
    assert output == ToolOutput(
        "no midwatch server runs, so this tool cannot work; start a server with `midwatch up`.", is_error=True
    )
    offline_turn = RecordingTurn(env={"MIDWATCH_URL": "http://127.0.0.1:9", "MIDWATCH_TOKEN": "x"})
    assert "does not answer (ConnectError)" in (await box.run("list_tasks", {}, offline_turn)).text


# -- the permissions of an attempt's token -----------------------------------------------------------------------


class Attempt:
    """The client of a running attempt."""

    def __init__(self, served: Served, token: str) -> None:
        self._served, self._token = served, token

    async def post(self, path: str, body: Any) -> tuple[int, str]:
        async with httpx2.AsyncClient(trust_env=False, timeout=30.0) as http:
            reply = await http.post(
                f"{self._served.url}/api/v1{path}", json=body, headers={"authorization": f"Bearer {self._token}"}
            )
        return reply.status_code, reply.json().get("detail", "")


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/tasks", {"prompt": "x", "session_key": "chat:other"}, "cannot set `session_key`"),
        ("/tasks", {"prompt": "x", "route": "webhook:http://evil"}, "cannot set `route`"),
        ("/tasks", {"prompt": "x", "priority": 100}, "cannot set `priority`"),
        ("/tasks", {"prompt": "x", "workdir": "/"}, "inside of the agent's own directory"),
        ("/tasks", {"prompt": "x", "workdir": "WORK/../other"}, "inside of the agent's own directory"),
        ("/tasks", {"prompt": "x", "workdir": "WORK/link"}, "inside of the agent's own directory"),
        ("/automations", {"prompt": "x", "every": "1h", "approvals": {"default": "allow"}}, "cannot set `approvals`"),
        ("/automations", {"prompt": "x", "every": "1h", "session_key": "chat:other"}, "cannot set `session_key`"),
        ("/automations", {"prompt": "x", "every": "1h", "scope_id": "bob"}, "cannot set `scope_id`"),
        ("/automations/import", {"automations": []}, "may not open sessions"),
        ("/tasks/t_1/cancel", {}, "may not change, stop"),
        ("/goals", {"objective": "x"}, "may not open sessions, set goals"),
        ("/tokens", {"name": "x", "role": "owner"}, "may not list, create or revoke tokens"),
    ],
)
async def test_an_attempt_cannot_grant_more_than_it_has(
    tmp_path: Path, path: str, body: dict[str, Any], told: str
) -> None:
    work, tokens, go_on = tmp_path / "work", [], asyncio.Event()
    (work / "in").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (work / "link").symlink_to(tmp_path / "other")
    started = asyncio.Event()

    async def note(turn: Turn) -> None:
        tokens.append(turn.env["MIDWATCH_TOKEN"])
        started.set()

    boss = ScriptedAgent(note, wait_for(go_on), result("done"), name="boss", terms=SUBMITS)
    async with serve_agents(tmp_path / "home", {"boss": boss}) as served:
        task = await served.runtime.tasks.submit("work", agent="boss", actor="ada", workdir=str(work))
        await started.wait()
        attempt = Attempt(served, tokens[0])
        fields = {
            name: value.replace("WORK", str(work)) if name == "workdir" else value for name, value in body.items()
        }
        status, detail = await attempt.post(path, fields)
        assert status == 403
        assert told in detail
        inside = {"prompt": "x", "agent": "demo", "workdir": str(work / "in")}
        assert (await attempt.post("/tasks", inside))[0] == 201
        go_on.set()
        await served.runtime.tasks.wait(task.id)
        assert (await attempt.post("/tasks", inside))[0] == 401


async def test_an_attempt_in_a_worktree_submits_tasks_for_that_worktree(tmp_path: Path) -> None:
    repo = a_repository(tmp_path / "repo")
    started, go_on, turn_details = asyncio.Event(), asyncio.Event(), []

    async def note(turn: Turn) -> None:
        turn_details.extend((turn.env["MIDWATCH_TOKEN"], str(turn.workdir)))
        started.set()

    boss = ScriptedAgent(note, wait_for(go_on), result("done"), name="boss", terms=SUBMITS)
    async with serve_agents(tmp_path / "home", {"boss": boss}) as served, asyncio.timeout(90):
        task = await served.runtime.tasks.submit("work", agent="boss", workdir=str(repo), worktree=True)
        await started.wait()
        token, workdir = turn_details
        assert workdir != str(repo)
        attempt = Attempt(served, token)
        assert (await attempt.post("/tasks", {"prompt": "x", "agent": "demo", "workdir": workdir}))[0] == 201
        status, detail = await attempt.post("/tasks", {"prompt": "x", "workdir": str(tmp_path)})
        assert (status, workdir in detail) == (403, True)
        go_on.set()
        await served.runtime.tasks.wait(task.id)
