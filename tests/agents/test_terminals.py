"""Test real agents in their terminals under a real midwatch with a fake model."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from agents.known import Known
from agents.rig import PATIENCE, Rig, start_rig, wait_for
from midwatch.base.errors import Conflict, NotFound

pytestmark = pytest.mark.timeout(400)

Json = dict[str, Any]


async def grant(rig: Rig) -> None:
    """Grant every request of the program, such as to trust a directory."""
    while True:
        for question in await rig.client.approvals():
            with suppress(Conflict, NotFound):  # the question may have ended since it was read
                await rig.client.approve(question["id"])
        await asyncio.sleep(0.1)


async def wait_for_end(rig: Rig, task_id: str, seconds: float = PATIENCE) -> Json:
    """Return the task once it has ended; grant requests of the program meanwhile, such as to trust a directory."""
    answering = asyncio.create_task(grant(rig))
    try:
        return await rig.wait_for_end(task_id, seconds)
    finally:
        answering.cancel()


async def turn(rig: Rig, key: str, text: str, seconds: float = PATIENCE) -> str:
    """Send a message and wait for a successful answer."""
    task = await wait_for_end(rig, await rig.send(key, text), seconds)
    assert (task["status"], task["outcome"]) == ("done", "ok"), (task["error"], rig.log())
    return str(task["result"])


async def test_three_turns_with_a_pause_and_a_long_reply(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        assert await turn(rig, key, "My name is Ada. [[say noted]]") == "noted"
        assert await turn(rig, key, "Take your time. [[pause 3]] [[say after it]]") == (
            "Let me think ... that is it. after it"
        )
        reply = await turn(rig, key, "[[long 2000]]", 120.0)
        lines = [line.strip() for line in reply.split("\n") if line.strip()]
        assert lines == [f"line {n} of a long answer" for n in range(2000)]
        assert "Ada" in await turn(rig, key, "[[recall]]")
        shown = await rig.client.messages(key)
        assert len([message for message in shown if message["role"] == "user"]) == 4


async def test_repeated_prompts_and_replies_and_long_replies_are_read(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        for _ in range(3):
            assert await turn(rig, key, "Again [[say the same reply]]") == "the same reply"
        long = "\n".join(f"This is line {n} of a long prompt, and it has words." for n in range(400))
        assert len(long) > 20_000
        assert await turn(rig, key, f"{long}\n[[say read it]]") == "read it"
        assert any(long in text for request in rig.model.requests for text in request["said"]), "it arrived whole"


async def test_a_dialog_is_recognised_and_answered(known: Known, way: str, tmp_path: Path) -> None:
    file, denied_file = tmp_path / "work" / "made.txt", tmp_path / "work" / "unmade.txt"
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        await turn(rig, key, "[[say ready]]")
        task_id = await rig.send(key, f"[[escalate touch {file.name}]] [[say tool used]]")
        question = await rig.wait_for_question(task_id)
        assert len(question["choices"]) >= 2 and not file.exists()
        assert (question["command"], question["kind"], question["risk"]) == ("touch made.txt", "execute", "medium")
        await rig.client.approve(question["id"])
        task = await wait_for_end(rig, task_id)
        assert (task["outcome"], file.exists()) == ("ok", True), (task, rig.log())
        assert "tool used" in task["result"]
        task_id = await rig.send(key, f"[[escalate touch {denied_file.name}]] [[say tool refused]]")
        question = await rig.wait_for_question(task_id)
        await rig.client.deny(question["id"], "not today")
        await rig.wait_for_end(task_id)
        assert not denied_file.exists()
        assert await turn(rig, key, "Go on [[say still here]]"), "it goes on, with whatever it makes of the refusal"


async def test_a_turn_is_cancelled_and_the_program_keeps_running(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key, name = await rig.open(), rig.make_name()
        await turn(rig, key, "My name is Ada. [[say noted]]")
        task_id = await rig.send(key, f"[[hold {name}]]")
        await rig.wait_for_hold(name)
        await rig.client.cancel(task_id)
        task = await rig.wait_for_end(task_id)
        assert (task["status"], task["outcome"]) == ("cancelled", "cancelled")
        rig.model.release(name)
        assert "Ada" in await turn(rig, key, "[[recall]]")
        assert (await rig.client.session(key))["epoch"] == 1


async def test_a_conversation_continues_after_the_server_was_killed(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        await turn(rig, key, "My name is Ada. [[say noted]]")
        await rig.kill()
        assert await rig.has_no_processes(), rig.leftovers()
        await rig.start()
        assert "Ada" in await turn(rig, key, "[[recall]]")

        async def live() -> bool:
            return bool((await rig.client.session(key))["epoch"] == 2)

        assert await wait_for(live, "it was opened again")


async def test_an_agentapi_client_talks_to_the_terminal(known: Known, way: str, tmp_path: Path) -> None:
    async with start_rig(known, way, tmp_path) as rig:
        key = await rig.open()
        token = (rig.server.home / "token").read_text().strip()
        base = f"{rig.server.url}/sessions/{quote(key, safe='')}/agentapi"
        granting = asyncio.create_task(grant(rig))
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60.0) as http:

            async def is_stable() -> bool:
                return bool((await http.get(f"{base}/status")).json()["status"] == "stable")

            async def last() -> Json:
                message: Json = (await http.get(f"{base}/messages")).json()["messages"][-1]
                return message

            says = (("[[say first]]", "first"), ("[[say first]]", "first"), ("[[say a => b]]", "a => b"))
            for number, (prompt, answer) in enumerate(says, 1):
                await wait_for(is_stable, "it waits for input")
                reply = await http.post(f"{base}/message", json={"content": prompt, "type": "user"})
                assert reply.status_code == 200, reply.text
                while (await last())["id"] < 2 * number or not await is_stable():
                    await asyncio.sleep(0.05)
                message = await last()
                assert (message["id"], message["role"], message["content"]) == (2 * number, "agent", answer)
        granting.cancel()
