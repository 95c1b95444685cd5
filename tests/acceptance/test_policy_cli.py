"""Test the commands of a policy: what the rules would decide, what work has spent, and what a spent budget does."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from commands import run
from servers import Server, environment, until

CONFIG = """
detect_agents = false
default_agent = "leader"
shutdown_grace = 0

[approvals]
deny = [{ command = "git push" }]

[agents.leader]
kind = "browser.spender:Spender"

[agents.helper]
kind = "browser.spender:Spender"

[agents.helper.approvals]
ask = [{ command = "git" }]
"""
TESTS = str(Path(__file__).parents[1])


class Desk:
    """A home and the commands run on it."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """Run a command that must end with this exit status, and return what it prints."""
        done = self._run(*arguments)
        assert done.returncode == status, (done.stdout, done.stderr)
        return done.stdout if status == 0 else done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(arguments, env=environment(self.home, PYTHONPATH=TESTS, COLUMNS="300"), cwd=self.home.parent)

    async def submit_to_end(self, *arguments: str) -> Any:
        """Submit a task and return it when it has ended."""
        task_id = self.json("submit", *arguments)["id"]

        def read() -> Any:
            task = self.json("show", task_id)
            return task if task["completed_at"] else None

        return await until(read)


@pytest.fixture
def offline(home: Path) -> Desk:
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG)
    return Desk(home)


@pytest.fixture
async def served(offline: Desk) -> AsyncIterator[Desk]:
    server = Server(offline.home, PYTHONPATH=TESTS)
    await server.start()
    yield offline
    await server.stop()


def test_rules_are_tested_and_nothing_is_asked(offline: Desk) -> None:
    push = ("rules", "test", "--agent", "helper", "--command", "sh -c 'git push'")
    first, *levels = offline(*push).splitlines()
    assert first == "denied by a rule of the desk: deny `git push`"
    assert [re.split(r"  +", line.strip()) for line in levels] == [
        ["LEVEL", "OF", "SAYS", "RULE"], ["desk", "deny", "deny `git push`"], ["agent", "ask", "ask `git`"],
    ]  # fmt: skip
    trial = offline.json(*push)
    assert (trial["effect"], trial["source"], trial["rule"], trial["kind"]) == (
        "deny", "desk", "deny `git push`", "execute",
    )  # fmt: skip
    assert offline("rules", "test", "--agent", "helper", "--command", "git log") == (
        "a person is asked by a rule of the agent: ask `git`\n"
    )
    assert offline("rules", "test", "--path", "x") == ("the tool decides whether it asks, because no rule applies\n"), (
        "without an agent it is the default agent"
    )
    assert offline.json("rules", "test", "--path", "x")["effect"] is None
    assert "(there is no agent 'helpr', so no rules of an agent were tested)" in offline(*push, "--agent", "helpr")
    assert "there is no task 't_none'" in offline(*push, "--task", "t_none", status=3)
    assert "No questions" in offline("approvals")


async def test_budgets_are_listed_and_shown(served: Desk) -> None:
    """A call costs 100 tokens and one cent."""
    task = await served.submit_to_end("call 2\nhelper: call 3", "--budget", "tokens=2000")
    (part,) = [other for other in served.json("tasks")["tasks"] if other["agent"] == "helper"]
    asking = served.json("submit", "call 9", "--budget", "tokens=200,steps=50", "--on-budget", "ask")
    (question,) = await until(lambda: served.json("approvals")["approvals"])
    header, *rows = [re.split(r"  +", line.strip()) for line in served("budgets").splitlines()]
    assert header == ["ID", "STATE", "SPENT", "WHAT"]
    assert [row[:3] for row in rows] == [
        [asking["id"], "asks", "200 of 200 tokens, 2 of 50 steps"],
        [task["id"], "ended", "500 of 2000 tokens"],
    ]
    assert [account["id"] for account in served.json("budgets", "--limit", "1")["budgets"]] == [asking["id"]]
    shown = served("budget", task["id"])
    assert "500 tokens, $0.05, 5 steps" in shown and "people are asked" in shown
    assert re.search(rf"^{part['id']} +done +helper +300 +\$0\.03 +call 3$", shown, re.M)
    assert re.search(rf"^{task['id']} +done +leader +200 +\$0\.02 +call 2", shown, re.M)
    told = served.json("budget", task["id"])
    assert (told["tokens"], told["limits"], [one["id"] for one in told["tasks"]]) == (
        500, {"tokens": 2000}, [task["id"], part["id"]],
    )  # fmt: skip
    assert f"midwatch approval {question['id']}" in served("budget", asking["id"])
    count = f"2 tasks, see `midwatch budget {task['id']}`"
    assert re.search(
        rf"with all work that grew out of it: 500 tokens, \$0\.05, .*; {count}", served("show", task["id"])
    )
    of_part = rf"this task: 300 tokens, \$0\.03\n *the whole work that it belongs to: 500 tokens, .*; {count}"
    assert re.search(of_part, served("show", part["id"]))
    assert "there is no budget" in served("budget", "t_none", status=3)
    served("cancel", asking["id"])


@pytest.mark.parametrize("place", [("submit", "x"), ("automation", "add", "x", "--every", "1h"), ("goal", "set", "x")])
def test_a_command_says_what_happens_when_a_budget_is_spent(offline: Desk, place: tuple[str, ...]) -> None:
    assert offline.json(*place, "--on-budget", "stop")["on_budget"] == "stop", "the default of a person is to ask"
    assert "on_budget: it must be one of: stop, ask" in offline(*place, "--on-budget", "never", status=2)
