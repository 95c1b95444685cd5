"""Test handoffs on the command line, with and without a server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from commands import run
from servers import Server, environment

CONFIG = """
detect_agents = false

[agents.shell]
kind = "command"
argv = ["sh", "-c", "{prompt}"]

[agents.echo]
kind = "command"
argv = ["cat"]
[[agents.echo.capabilities]]
name = "saying"
task_types = ["say"]

[agents.shut]
kind = "demo"
handoffs = false
"""


@pytest.fixture
def home(home: Path) -> Path:
    home.mkdir()
    (home / "midwatch.toml").write_text(CONFIG)
    return home


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Path]:
    server = Server(home)
    await server.start()
    yield home
    assert await server.stop() == 0


def midwatch(home: Path, *arguments: str, said: str | None = None) -> subprocess.CompletedProcess[str]:
    return run(arguments, env=environment(home), cwd=home, said=said)


def run_json(home: Path, *arguments: str) -> Any:
    ran = midwatch(home, *arguments, "--json")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


async def test_handoffs_are_made_listed_shown_cancelled_and_retried(served: Path) -> None:
    done = midwatch(served, "handoff", "to", "echo", "say this", "--wait")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "say this", "")
    by_type = run_json(served, "handoff", "to", "--type", "say", "and this", "--input", '{"n": 1}', "--wait")
    assert by_type["to_agent_id"] == "echo"
    assert by_type["task"] == {
        "type": "say", "description": "and this", "input": {"n": 1}, "priority": 0, "metadata": {},
    }  # fmt: skip
    source = run_json(served, "run", "echo some work", "--agent", "shell")
    over = run_json(served, "handoff", "to", "echo", "--from-task", source["id"], "--wait", "--timeout", "1m")
    assert (over["source_task"], over["timeout"], over["from_agent_id"]) == (source["id"], 60.0, "shell")
    assert over["result"]["output"].strip() == "echo some work\n\nsome work"
    wordless = run_json(served, "handoff", "to", "echo", "--input", '["a", 1]', "--wait")
    assert (wordless["task"]["description"], wordless["task"]["input"]) == ("", ["a", 1])
    for target, expected in (("shell", ("shell", "")), ("words", ("echo", "words"))):
        typed = run_json(served, "handoff", "to", target, "--type", "say", "--input", '"true"', "--wait")
        assert (typed["to_agent_id"], typed["task"]["description"]) == expected
    assert over["id"] in midwatch(served, "show", over["task_id"]).stdout
    read = midwatch(served, "handoff", "to", "echo", "-", "--wait", said="from a pipe")
    assert read.stdout.strip() == "from a pipe"

    hangs = run_json(served, "handoff", "to", "shell", "sleep 600")
    listed = midwatch(served, "handoff", "list", "--agent", "shell")
    assert hangs["id"] in listed.stdout and "in_progress" in listed.stdout and by_type["id"] not in listed.stdout
    assert [handoff["id"] for handoff in run_json(served, "handoff", "list", "-s", "in_progress")["handoffs"]] == [
        hangs["id"]
    ]
    assert midwatch(served, "handoff", "cancel", hangs["id"]).stdout == f"{hangs['id']} is cancelled\n"
    shown = midwatch(served, "handoff", "show", hangs["id"]).stdout
    assert "cancelled by owner" in shown and "sleep 600" in shown
    assert "completed" not in shown and "late" not in shown
    again = run_json(served, "handoff", "retry", hangs["id"])
    assert again["retry_of"] == hangs["id"]
    run_json(served, "handoff", "cancel", again["id"])
    assert [handoff["id"] for handoff in run_json(served, "handoff", "list", "--root", source["id"])["handoffs"]] == [
        over["id"]
    ]


async def test_a_failed_handoff_prints_one_line_and_has_a_status(served: Path) -> None:
    for arguments, status, message in (
        (("to", "echo"), 2, "name the agent and the work"),
        (("to", "nobody", "x"), 2, "nobody"),
        (("to", "echo", "x", "y"), 2, "name the agent and the work"),
        (("to", "shut", "x"), 1, "handoffs to this agent are disabled; choose another agent"),
        (("to", "--type", "paint", "x"), 1, "no agent here can do work of type 'paint'"),
        (("to", "shell", "exit 3", "--wait"), 1, "failed: "),
        (("to", "shell", "sleep 60", "--wait", "--timeout", "1s"), 1, "expired: "),
        (("to", "echo", "x", "--input", "{"), 2, "--input is not JSON"),
        (("to", "echo", "x", "--input", "[NaN]"), 2, "--input is not JSON"),
        (("to", "echo", "x", "--input", "[" * 9000 + "]" * 9000), 2, "--input is not JSON"),
        (("show",), 2, "see `midwatch handoff show --help`"),
        (("show", "h_none"), 3, "there is no handoff 'h_none'"),
        (("cancel", "h_none"), 3, "midwatch handoff list"),
    ):
        ran = midwatch(served, "handoff", *arguments)
        assert (ran.returncode, ran.stdout) == (status, ""), (arguments, ran)
        assert message in ran.stderr and len(ran.stderr.splitlines()) == 1, ran.stderr
    for to, status, message in (
        ("shut", 1, "did not accept it"),
        ("shut", 1, "rejected: "),
        ("echo", 4, "another key"),
    ):
        ran = midwatch(served, "handoff", "to", to, "x", "--key", "once")
        assert (ran.returncode, ran.stdout) == (status, "") and message in ran.stderr, ran
    failed = midwatch(served, "handoff", "to", "shell", "exit 3", "--wait", "--json")
    assert (failed.returncode, json.loads(failed.stdout)["status"]) == (1, "failed")


def test_without_a_server_a_handoff_runs_here_or_waits(home: Path) -> None:
    done = midwatch(home, "handoff", "to", "echo", "here", "--wait")
    assert (done.returncode, done.stdout.strip()) == (0, "here"), done.stderr
    late = midwatch(home, "handoff", "to", "shell", "sleep 60", "--wait", "--timeout", "0.3s")
    assert late.returncode == 1 and "expired: " in late.stderr, late
    waits = midwatch(home, "handoff", "to", "echo", "later")
    assert waits.returncode == 0 and "midwatch up" in waits.stderr
    assert "in_progress" in midwatch(home, "handoff", "list").stdout
