"""Test messages for a turn in another process, and for a turn whose process dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from midwatch import Runtime, Settings
from midwatch.client import Client
from servers import Server, WorkerProcess, until

AGENT = """
import time

def deaf(prompt, turn):
    if prompt == "begin":
        time.sleep(600)
    return "did " + prompt

def hear(prompt, turn):
    if turn.attempt == 1 and prompt == "begin":
        time.sleep(600)
    return " ".join(turn.receive() for _ in range(3))

def listen(prompt, turn):
    return "heard " + turn.receive()
"""
CONFIG = """
detect_agents = false
shutdown_grace = 0
default_agent = "deaf"
"""
KEY = "chat:1"
TEXTS = ["one", "two", "three"]


def write_home(home: Path, extra: str = "") -> None:
    """Write a home with agents in `steered.py`."""
    home.mkdir(mode=0o700)
    (home / "steered.py").write_text(AGENT)
    agents = "".join(
        f'[agents.{name}]\nkind = "function"\ntarget = "steered:{name}"\npath = "{home}"\non_crash = "{rule}"\n'
        for name, rule in (("deaf", "fail"), ("hear", "rerun"), ("listen", "rerun"))
    )
    (home / "midwatch.toml").write_text(f"{extra}{CONFIG}{agents}")


def client_of(server: Server) -> Client:
    return Client(server.url, (server.home / "token").read_text().strip())


@pytest.fixture
async def server(home: Path) -> AsyncIterator[Server]:
    write_home(home)
    new_server = Server(home)
    await new_server.start()
    yield new_server
    await new_server.stop()


async def start_turn(client: Client, agent: str) -> str:
    await client.create_session(key=KEY, agent=agent, prompt="begin")

    async def is_running() -> Any:
        return (await client.session(KEY))["running_task"]

    return str(await until(is_running))


async def kill_with_waiting_messages(server: Server, agent: str) -> tuple[str, list[str]]:
    """Kill the server while messages wait, and return the task and the ids of the messages."""
    async with client_of(server) as client:
        task = await start_turn(client, agent)
        sent = [(await client.send(KEY, text, mode="interrupt"))["steer"] for text in TEXTS]
    await server.kill()
    await server.start()
    return task, [message["id"] for message in sent if message]


async def results(server: Server, ids: list[str]) -> list[tuple[str, str | None]]:
    """Return how the tasks ended."""
    async with client_of(server) as client:

        async def have_ended() -> Any:
            tasks = [await client.get(task_id) for task_id in ids]
            return (
                [(task["status"], task["result"]) for task in tasks] if all(task["outcome"] for task in tasks) else None
            )

        return await until(have_ended)  # type: ignore[no-any-return]


async def test_messages_of_a_lost_task_become_tasks(server: Server) -> None:
    task, ids = await kill_with_waiting_messages(server, "deaf")
    assert await results(server, [task]) == [("failed", None)]
    assert await results(server, ids) == [("done", f"did {text}") for text in TEXTS]
    async with client_of(server) as client:
        texts = [message["text"] for message in await client.messages(KEY) if message["role"] == "user"]
        assert texts == ["begin", *TEXTS]
        assert (await client.summary())["total"] == 4


async def test_the_next_attempt_gets_the_waiting_messages(server: Server) -> None:
    task, _ = await kill_with_waiting_messages(server, "hear")
    assert await results(server, [task]) == [("done", " ".join(TEXTS))]


async def test_a_message_reaches_a_turn_in_another_process(tmp_path: Path, database: str) -> None:
    worker = WorkerProcess(tmp_path / "worker")
    write_home(worker.home, f'db = "{database}"\n')
    worker.start()
    try:
        settings = Settings.load(tmp_path / "here", db=database, detect_agents=False)
        async with Runtime.open(settings=settings, work=False) as desk:

            async def is_offered() -> bool:
                return "listen" in await desk.registry.live()

            await until(is_offered)
            await desk.sessions.create(key=KEY, agent="listen")
            task = await desk.sessions.send(KEY, "begin")

            async def waits() -> Any:
                return (await desk.sessions.get(KEY)).running_task

            await until(waits)
            before = time.monotonic()
            sent = await desk.sessions.say(KEY, "over here", "interrupt")
            assert sent.mode == "interrupt", "its terms are known here, too"
            async with asyncio.timeout(60):
                assert (await desk.tasks.wait(task.id)).result == "heard over here"
            print(f"heard after {time.monotonic() - before:.2f} s")
    finally:
        await worker.stop()
