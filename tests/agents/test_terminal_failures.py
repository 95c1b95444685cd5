"""Test that failures of real agents in their terminals are failures, under a real midwatch with a fake model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agents.known import Known
from agents.rig import start_rig, wait_for
from agents.test_terminals import turn, wait_for_end
from midwatch.agents.known import KNOWN

pytestmark = pytest.mark.timeout(300)

LIMITS = {"goose": "quota 3600 {name}"}
"""Scripts of a usage limit for agents that wait for one by themselves if its end is known."""
KEYS = {
    "claude": "CLAUDE_CODE_OAUTH_TOKEN", "codex": "FAKE_API_KEY", "gemini": "GEMINI_API_KEY", "goose": "GOOSE_PROVIDER"
}  # fmt: skip
"""The variables without which an agent is not signed in."""
ANSWERS_AFTER_A_DENIAL = ("goose",)
QUOTES = (
    "You've hit your usage limit, resets 3pm.",
    "API Error: 401 Unauthorized",
    "Please run /login",
    "✕ API Error: quota exceeded",
    "Ran into this error: Rate limit exceeded.",
)


async def test_a_usage_limit_parks_the_task(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key, name = await rig.open(), rig.make_name()
        await turn(rig, key, "My name is Ada. [[say noted]]")
        script = LIMITS.get(known.name, "limit 3600 {name}").format(name=name)
        task_id = await rig.send(key, f"[[{script}]] [[say back again]]")

        async def is_parked() -> bool:
            task = await rig.client.get(task_id)
            assert task["status"] in ("pending", "running"), (task, rig.log())
            return (task["status"], task["wait"]) == ("pending", "limit")

        await wait_for(is_parked, "the task is parked")
        assert await rig.client.approvals() == [], "a limit is no question"

        async def is_idle() -> bool:
            return bool((await rig.client.screen(key))["status"] == "idle")

        assert await wait_for(is_idle, "the program waits for input")
        rig.model.lift(name)
        await rig.make_due(task_id)
        task = await wait_for_end(rig, task_id)
        assert (task["status"], task["outcome"], task["failures"]) == ("done", "ok", 0), (task, rig.log())
        assert "back again" in task["result"]
        assert "Ada" in await turn(rig, key, "[[recall]]")


async def test_an_agent_that_is_not_signed_in_says_how_to_sign_in(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path, env={KEYS[known.name]: ""}) as rig:
        task = await wait_for_end(rig, await rig.send(await rig.open(), "[[say hello]]"))
        assert (task["status"], task["outcome"]) == ("failed", "error"), (task, rig.log())
        assert "is not signed in" in task["error"] and KNOWN[known.name].sign_in in task["error"]
        asked: list[Any] = await rig.client.approvals("all")
        assert not [question for question in asked if "trust" not in question["question"]], "it asks nothing"


async def test_a_quoted_failure_is_an_answer_and_an_api_error_is_not(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        for text in QUOTES:
            assert text in " ".join((await turn(rig, key, f"[[say {text}]]")).split())
        task = await wait_for_end(rig, await rig.send(key, "[[fail 400]]"))
        assert (task["status"], task["outcome"]) == ("failed", "error"), (task, rig.log())
        assert task["error"].startswith(f"{known.name} failed: ")


async def test_a_denied_dialog_ends_as_over_acp(known: Known, way: str, tmp_path: Path) -> None:
    file = tmp_path / "work" / "unmade.txt"
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        await turn(rig, key, "[[say ready]]")
        task_id = await rig.send(key, f"[[escalate touch {file.name}]] [[say tool refused]]")
        question = await rig.wait_for_question(task_id)
        await rig.client.deny(question["id"], "not today")
        task = await rig.wait_for_end(task_id)
        assert not file.exists()
        if known.name in ANSWERS_AFTER_A_DENIAL:
            assert task["outcome"] == "ok" and "tool refused" in task["result"], task
        else:
            assert task["outcome"] == "error" and "denied actions" in task["error"], task
            assert "not today" in task["error"]
        assert await turn(rig, key, "Go on [[say still here]]")
