"""Test real agents under a real midwatch with a fake model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agents.known import Known
from agents.rig import PATIENCE, start_rig, wait_for
from midwatch.programs import sandbox
from midwatch.programs.state import find_state

REFUSED = sandbox._try_sandbox("bwrap")
pytestmark = pytest.mark.timeout(300)


async def test_three_turns_with_memory(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        assert "noted" in await rig.turn(key, "My name is Ada. [[say noted]]")
        assert "noted" in await rig.turn(key, "I live in Bonn. [[say noted]]")
        answer = await rig.turn(key, "[[recall]]")
        assert "Ada" in answer
        assert "Bonn" in answer


async def test_an_allowed_tool_runs(known: Known, way: str, tmp_path: Path) -> None:
    file = tmp_path / "work" / "made.txt"
    options, verb = ({"permissions": "all"}, "shell") if way == "headless" else ({}, "escalate")
    async with start_rig(known, way, tmp_path, **options) as rig:
        key = await rig.open()
        task_id = await rig.send(key, f"[[{verb} touch {file.name}]] [[say all done]]")
        if way == "acp":
            question = await rig.wait_for_question(task_id)
            assert "touch made.txt" in (question["command"] or "") + question["question"]
            assert not file.exists()
            await rig.client.approve(question["id"])
        task = await rig.wait_for_end(task_id)
        assert (task["outcome"], file.exists()) == ("ok", True), (task, rig.log())
        assert "all done" in task["result"]


async def test_a_denied_tool_does_not_run(known: Known, way: str, tmp_path: Path) -> None:
    file = tmp_path / "work" / "made.txt"
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        task_id = await rig.send(key, f"[[escalate touch {file.name}]] [[say all done]]")
        if way == "acp":
            question = await rig.wait_for_question(task_id)
            denied = await rig.client.deny(question["id"], "not today")
            assert denied["status"] == "denied"
        task = await rig.wait_for_end(task_id)
        assert not file.exists()
        if way == "headless" and known.hides_tools:
            assert "No tool for escalate" in task["result"]
        elif way == "headless":
            assert task["outcome"] == "error", task
        assert "still here" in await rig.turn(key, "[[say still here]]")


@pytest.mark.asks
async def test_an_unanswered_question_expires(known: Known, way: str, tmp_path: Path) -> None:
    file = tmp_path / "work" / "made.txt"
    async with start_rig(known, way, tmp_path, approvals={"expires": 1.5}) as rig:
        key = await rig.open()
        task_id = await rig.send(key, f"[[escalate touch {file.name}]] [[say all done]]")
        question = await rig.wait_for_question(task_id, "all")  # it may end before it is read
        await rig.wait_for_end(task_id)
        assert (await rig.client.approval(question["id"]))["status"] == "expired"
        assert not file.exists()


async def test_a_turn_is_cancelled(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key, name = await rig.open(), rig.make_name()
        await rig.turn(key, "My name is Ada. [[say noted]]")
        task_id = await rig.send(key, f"[[hold {name}]]")
        await rig.wait_for_hold(name)
        await rig.client.cancel(task_id)
        task = await rig.wait_for_end(task_id)
        assert (task["status"], task["outcome"]) == ("cancelled", "cancelled")
        rig.model.release(name)  # an agent may repeat the text that was interrupted
        assert "Ada" in await rig.turn(key, "[[recall]]")


async def test_a_task_waits_for_the_end_of_a_usage_limit(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key, name = await rig.open(), rig.make_name()
        await rig.turn(key, "My name is Ada. [[say noted]]")
        task_id = await rig.send(key, f"[[{known.limit.format(name=name)}]] [[say back again]]")
        if known.waits:
            assert (await rig.wait_for_end(task_id))["outcome"] == "ok"
            pytest.skip("it waits for the end of its limit by itself")

        async def is_parked() -> str | None:
            task = await rig.client.get(task_id)
            assert task["status"] in ("pending", "running"), (task, rig.log())
            return task["due_at"] if (task["status"], task["wait"]) == ("pending", "limit") else None

        due = datetime.fromisoformat(await wait_for(is_parked, "the task is parked"))
        assert due <= datetime.now(UTC) + timedelta(minutes=6)
        rig.model.lift(name)
        if due > datetime.now(UTC) + timedelta(seconds=10):  # reported in minutes, or not at all
            await rig.make_due(task_id)
        task = await rig.wait_for_end(task_id)
        assert (task["status"], task["outcome"], task["failures"]) == ("done", "ok", 0), (task, rig.log())
        assert "Ada" in await rig.turn(key, "[[recall]]")


async def test_a_conversation_continues_after_the_server_was_killed(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key, name = await rig.open(), rig.make_name()
        await rig.turn(key, "My name is Ada. [[say noted]]")
        task_id = await rig.send(key, f"I live in Bonn. [[hold {name}]] [[say finished]]")
        await rig.wait_for_hold(name)
        await rig.kill()
        assert await rig.has_no_processes(), rig.leftovers()
        rig.model.release(name)
        await rig.start()
        task = await rig.wait_for_end(task_id, PATIENCE * 2)
        assert (task["status"], task["outcome"], task["rescues"]) == ("done", "ok", 1), (task, rig.log())
        assert "Ada" in await rig.turn(key, "[[recall]]")


@pytest.mark.skipif(REFUSED is not None, reason=f"bubblewrap cannot be used here: {REFUSED}")
async def test_a_conversation_in_a_sandbox_is_kept_and_settings_are_not_changed(
    known: Known, way: str, tmp_path: Path
) -> None:
    async with start_rig(known, way, tmp_path, sandbox="bwrap") as rig:
        user, before = tmp_path / "agent", {}
        for name in find_state(known.name).shown:
            if not name.endswith("/") and (user / name).is_file():
                before[user / name] = (user / name).read_bytes()
        key = await rig.open()
        assert "noted" in await rig.turn(key, "My name is Ada. [[say noted]]")
        await rig.stop()
        await rig.start()
        assert "Ada" in await rig.turn(key, "[[recall]]")
        kept = tuple(name.rstrip("/") for name in find_state(known.name).kept)
        written = [str(path.relative_to(user)) for path in user.rglob("*") if path.is_file() and path not in before]
        assert [name for name in written if not name.startswith(kept)] == []
        assert {path: path.read_bytes() for path in before} == before
