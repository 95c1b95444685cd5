"""Test what only terminals have: long replies on a screen, repeated prompts, and clients of agentapi."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from agents.known import Known
from agents.rig import Json, start_rig, wait_for

pytestmark = pytest.mark.timeout(400)


async def test_long_reply(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key = await rig.open()
        assert await rig.turn(key, "My name is Ada. [[say noted]]") == "noted"
        assert await rig.turn(key, "Take your time. [[pause 3]] [[say after it]]") == (
            "Let me think ... that is it. after it"
        )
        reply = await rig.turn(key, "[[long 2000]]", 120.0)
        lines = [line.strip() for line in reply.split("\n") if line.strip()]
        assert lines == [f"line {n} of a long answer" for n in range(2000)]
        assert "Ada" in await rig.turn(key, "[[recall]]")
        shown = await rig.client.messages(key)
        assert len([message for message in shown if message["role"] == "user"]) == 4


async def test_repeated_prompts(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key = await rig.open()
        for _ in range(3):
            assert await rig.turn(key, "Again [[say the same reply]]") == "the same reply"
        long = "\n".join(f"This is line {n} of a long prompt, and it has words." for n in range(400))
        assert len(long) > 20_000
        assert await rig.turn(key, f"{long}\n[[say read it]]") == "read it"
        assert any(long in text for request in rig.model.requests for text in request["said"]), "it arrived whole"


async def test_agentapi_client(known: Known, kind: str, tmp_path: Path) -> None:
    async with start_rig(known, kind, tmp_path) as rig:
        key = await rig.open()
        token = (rig.server.home / "token").read_text().strip()
        base = f"{rig.server.url}/sessions/{quote(key, safe='')}/agentapi"
        granting = asyncio.create_task(rig.grant())
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
