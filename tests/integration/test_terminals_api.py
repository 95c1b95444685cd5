"""Test terminals over HTTP: from their own process, and from another one on the same database."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2

from midwatch import Runtime, Settings
from midwatch.testing import ScriptedAgent, result
from serving import Served, serve_agents, watch

LISTENER = """
while True:
    said = input("> ")
    print("you said", said)
"""
KEY = "chat:1"
AGENT = {"kind": "terminal", "argv": [sys.executable, "-c", LISTENER], "prompt": "^> $"}
AGENTS = {"listener": AGENT}


async def screen(http: httpx2.AsyncClient, text: str) -> Any:
    """Return the screen once it shows the text."""
    async with asyncio.timeout(60):
        while True:
            reply = await http.get(f"/sessions/{KEY}/screen", params={"styled": True})
            if reply.is_success and text in reply.json()["text"]:
                return reply.json()
            await asyncio.sleep(0.02)


async def check_terminal(served: Served) -> None:
    """Do everything that a person does at a terminal."""
    http = served.http
    shown = await screen(http, ">")
    assert sorted(shown) == sorted(
        ["text", "columns", "rows", "cursor", "title", "status", "evidence", "certain", "styled"]
    )
    assert (await served.post(f"/sessions/{KEY}/keys", {"keys": "hello ü\r"})) == {"typed": 9}
    shown = await screen(http, "you said hello ü")
    assert "hello" in shown["styled"]
    assert (await served.post(f"/sessions/{KEY}/keys", {"keys": "\0"})) == {"typed": 1}, "Ctrl-Space is a key, too"
    await served.post(f"/sessions/{KEY}/keys", {"keys": "\x15"})
    shown = await served.post(f"/sessions/{KEY}/resize", {"columns": 60, "rows": 15})
    assert (shown["columns"], shown["rows"], shown["styled"]) == (60, 15, "")
    for path, body in (("resize", {"columns": 5, "rows": 15}), ("resize", {}), ("keys", {"keys": ""}), ("keys", {})):
        assert (await http.post(f"/sessions/{KEY}/{path}", json=body)).status_code == 422
    async with served.as_role("viewer") as viewer:
        assert (await viewer.get(f"/sessions/{KEY}/screen")).status_code == 200
        for path, body in (("keys", {"keys": "x"}), ("open", {}), ("resize", {"columns": 60, "rows": 15})):
            assert (await viewer.post(f"/sessions/{KEY}/{path}", json=body)).status_code == 403


async def test_a_terminal_is_used_over_http(home: Path) -> None:
    async with serve_agents(home, {"scripted": ScriptedAgent(result("x"))}, agents=AGENTS) as served:
        http = served.http
        await served.post("/sessions", {"key": KEY, "agent": "listener"})
        refused = await http.get(f"/sessions/{KEY}/screen")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert (await http.get("/sessions/chat:nobody/screen")).status_code == 404
        assert (await served.post(f"/sessions/{KEY}/open"))["columns"] == 120
        await served.post(f"/sessions/{KEY}/open")
        await check_terminal(served)
        await served.post("/sessions", {"key": "chat:2", "agent": "scripted"})
        refused = await http.post("/sessions/chat:2/open")
        assert (refused.status_code, "no terminal" in refused.json()["detail"]) == (409, True)
        await served.post(f"/sessions/{KEY}/close")
        assert (await http.post(f"/sessions/{KEY}/open")).status_code == 409


async def test_a_terminal_of_a_missing_program_is_an_error(home: Path) -> None:
    missing = {"lost": {"kind": "terminal", "argv": ["/no/such/program"]}}
    async with serve_agents(home, {"scripted": ScriptedAgent(result("x"))}, agents=missing) as served:
        await served.post("/sessions", {"key": KEY, "agent": "lost"})
        refused = await served.http.post(f"/sessions/{KEY}/open")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert "/no/such/program" in refused.json()["detail"]


async def test_a_terminal_open_in_another_process_is_reached(tmp_path: Path, database: str) -> None:
    there = Settings.load(
        tmp_path / "there", detect_agents=False, shutdown_grace=0, agents=AGENTS, default_agent="listener", db=database
    )
    async with (
        Runtime.open(settings=there) as elsewhere,
        serve_agents(tmp_path / "here", {"scripted": ScriptedAgent(result("x"))}, db=database) as served,
    ):
        await elsewhere.sessions.create(key=KEY, agent="listener")
        await elsewhere.terminals.open(KEY)
        await check_terminal(served)
        base = f"{served.url}/sessions/{KEY}/agentapi"
        async with asyncio.timeout(90):
            while (status := (await served.http.get(f"{base}/status")).json())["status"] != "stable":
                await asyncio.sleep(0.02)
            assert status["transport"] == "pty"
            reply = await served.http.post(f"{base}/message", json={"content": "across", "type": "user"})
            assert reply.status_code == 200, reply.text
            async with aclosing(watch(served.http, f"{base}/events")) as stream:
                async for frame in stream:
                    if frame.event == "message_update" and frame.data["message"] == "you said across":
                        break
            async with aclosing(watch(served.http, f"{base}/internal/screen")) as stream:
                async for frame in stream:
                    if "you said across" in frame.data["screen"]:
                        break
