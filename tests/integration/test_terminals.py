"""Test terminals of sessions: shown, typed into and opened, from their own process and from another one."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings
from midwatch.base.errors import Conflict, InvalidInput, NotFound
from midwatch.domain.event import EventFilter
from midwatch.programs.guard import guard
from midwatch.testing import ScriptedAgent, result, settle

LISTENER = """
import os, sys, termios, tty
while True:
    said = input("> ")
    if said == "leave": sys.exit(3)
    if said == "who": print("I am", os.getpid())
    elif said == "wait": print("waiting"); print("got", input())
    elif said == "ask":
        before = termios.tcgetattr(0); tty.setcbreak(0)
        print("─" * 40, "Run the command?", "  rm -r build", " ❯ 1. Yes", "   2. No", "Esc to cancel", sep="\\n")
        sys.stdout.flush(); key = sys.stdin.read(1)
        termios.tcsetattr(0, termios.TCSADRAIN, before); print("\\033[2J\\033[Hkey", key)
    else: print("you said", said)
"""
KEY = "chat:1"


def desk(folder: Path, *, env: dict[str, str] | None = None, **options: Any) -> Any:
    argv = [sys.executable, "-c", LISTENER]
    listener = {"kind": "terminal", "argv": argv, "prompt": "^> $", "asking": "Esc to cancel"}
    agents = {"listener": listener}
    settings = Settings.load(
        folder, detect_agents=False, shutdown_grace=0, agents=agents, default_agent="listener", **options
    )
    return Runtime.open(settings=settings, agents={"scripted": ScriptedAgent(result("x"))})


async def send_message(open_desk: Runtime, text: str) -> str:
    task = await open_desk.tasks.wait((await open_desk.sessions.send(KEY, text)).id)
    assert task.status == "done", task.error
    return task.result or ""


async def wait_for_screen(open_desk: Runtime, text: str) -> None:
    async with asyncio.timeout(60):
        while text not in (await open_desk.terminals.screenshot(KEY)).text:
            await asyncio.sleep(0.01)


async def test_a_session_is_one_terminal(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.sessions.create(key=KEY)
        with pytest.raises(Conflict, match="no open terminal"):
            await here.terminals.screenshot(KEY)
        assert len({await send_message(here, "who") for _ in range(3)}) == 1
        await here.terminals.send_keys(KEY, b"typed by hand\r")
        await wait_for_screen(here, "you said typed by hand")
        await here.terminals.resize(KEY, 60, 20)
        async with asyncio.timeout(60):
            while (picture := await here.terminals.screenshot(KEY, styled=True)).status != "idle":
                await asyncio.sleep(0.01)
        assert (picture.columns, picture.rows, picture.evidence, picture.certain) == (60, 20, "text", True)
        assert "typed by hand" in picture.styled
        for columns, rows in ((5, 20), (60, 5), (60, 5000)):
            with pytest.raises(InvalidInput):
                await here.terminals.resize(KEY, columns, rows)
        with pytest.raises(NotFound):
            await here.terminals.screenshot("chat:nobody")
        await here.sessions.close(KEY)
        async with asyncio.timeout(60):
            while (await here.sessions.get(KEY)).session.live_owner is not None:
                await asyncio.sleep(0.01)
        with pytest.raises(Conflict):
            await here.terminals.send_keys(KEY, b"x")
    assert guard.pid is None, "a process group was left behind"


async def test_a_denied_dialog_is_a_skipped_tool_with_its_rule(tmp_path: Path) -> None:
    async with desk(tmp_path, approvals={"deny": [{"kind": "execute"}]}) as here:
        await here.sessions.create(key=KEY)
        task = await here.tasks.wait((await here.sessions.send(KEY, "ask")).id)
        (skipped,) = await here.store.read_events(0, EventFilter(task_id=task.id, kinds=("tool_exec_skipped",)))
        assert (skipped.payload["tool"], skipped.payload["rule"]) == ("execute", "deny execute")
        assert "key 2" in (task.result or ""), "no was typed"
        assert await here.approvals.list() == []


async def test_a_terminal_can_be_opened_before_the_first_message(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.sessions.create(key=KEY)
        await here.terminals.open(KEY)
        await wait_for_screen(here, ">")
        await here.terminals.send_keys(KEY, b"who\r")
        await wait_for_screen(here, "I am")
        picture = await here.terminals.screenshot(KEY)
        await here.terminals.open(KEY)
        assert await send_message(here, "who") in picture.text
        assert (await here.sessions.get(KEY)).session.epoch == 1
        await here.sessions.create(key="chat:2", agent="scripted")
        with pytest.raises(Conflict, match="has no terminal"):
            await here.terminals.open("chat:2")


async def test_the_screen_is_sent_between_turns_too(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.sessions.create(key=KEY)
        await send_message(here, "hello")
        which = EventFilter(session_key=KEY, kinds=("screen_update",))

        async def watch_screens() -> None:
            async with aclosing(here.bus.follow(0, which, live=True)) as following:
                async for shown in following:
                    if "you said by hand" in shown.payload["screen"]:
                        return

        watching = asyncio.create_task(watch_screens())
        await settle()
        await here.terminals.send_keys(KEY, b"by hand\r")
        async with asyncio.timeout(60):
            await watching


async def test_a_program_that_exited_is_reported_and_restarted(tmp_path: Path) -> None:
    async with desk(tmp_path) as here:
        await here.sessions.create(key=KEY)
        task = await here.tasks.wait((await here.sessions.send(KEY, "leave")).id)
        assert task.status == "failed" and "failed with exit code 3" in (task.error or "")
        assert await send_message(here, "hello") == "you said hello"
        exits = await here.store.read_events(0, EventFilter(kinds=("agent_exited",)))
        assert [(e.payload["code"], e.session_key) for e in exits] == [(3, KEY)]
        assert "leave" in exits[0].payload["screen"]


async def test_keys_and_screens_reach_another_process(tmp_path: Path, database: str) -> None:
    async with desk(tmp_path / "a", db=database) as here, desk(tmp_path / "b", db=database) as there:
        await here.sessions.create(key=KEY)
        await send_message(here, "hello")
        owner = (await here.sessions.get(KEY)).session.live_owner
        near, far = (here, there) if owner == here.id else (there, here)
        assert "you said hello" in (await far.terminals.screenshot(KEY)).text
        task = await far.sessions.send(KEY, "wait")
        await wait_for_screen(far, "waiting")
        await far.terminals.send_keys(KEY, b"keys from afar\r")
        assert (await far.tasks.wait(task.id)).result == "waiting\nkeys from afar\ngot keys from afar"
        await far.terminals.resize(KEY, 70, 25)
        picture = await near.terminals.screenshot(KEY)
        assert (picture.columns, picture.rows) == (70, 25)
        with pytest.raises(Conflict, match="another process"):
            await far.terminals.open(KEY)
        near.terminals._conversations.find(KEY)._live.child.interrupt("kill")
        async with asyncio.timeout(60):
            with pytest.raises(Conflict, match="no open terminal"):
                while True:
                    await far.terminals.screenshot(KEY)
                    await asyncio.sleep(0.01)
