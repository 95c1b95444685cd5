"""Test `midwatch agentapi server` with the end-to-end cases of coder/agentapi.

An agent follows a script, and a client looks at statuses, events and messages.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from standalone import StandaloneServer, start_standalone

AGENT = Path(__file__).parents[1] / "fakes" / "echo_agent.py"
GREETING = {"expectMessage": "", "responseMessage": "Hello! I am ready."}
Entry = dict[str, Any]


def expect(message: str, reply: str | None = None, think: int = 0) -> Entry:
    """Return an entry of an agent's script."""
    return {"expectMessage": message, "thinkDurationMS": think, "responseMessage": reply or f"Echo: {message}"}


def make_agent(folder: Path, entries: Sequence[Entry], way: str = "terminal", slow: float = 0) -> list[str]:
    """Return the command line of an agent with this script. Another program loads it, if it takes `slow` seconds."""
    script = folder / f"script-{len(list(folder.glob('script-*')))}.json"
    script.write_text(json.dumps(entries))
    argv = [sys.executable, "-I", "-S", str(AGENT), way, str(script)]
    return ["/bin/sh", "-c", f'echo loading; sleep {slow}; "$@"; exit', "sh", *argv] if slow else argv


async def wait_for_stable(server: StandaloneServer) -> list[tuple[str, Any]]:
    """Read the stream of events, as clients do, until it says that the agent is stable. Return the events."""
    events: list[tuple[str, Any]] = []
    async with asyncio.timeout(60), server.http.stream("GET", "/events") as reply:
        name = ""
        async for line in reply.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append((name, json.loads(line.removeprefix("data: "))))
                if name == "status_change" and events[-1][1]["status"] == "stable":
                    return events
    raise AssertionError("the stream of events has ended")


async def status(server: StandaloneServer) -> str:
    return str((await server.http.get("/status")).json()["status"])


async def wait_for_count(server: StandaloneServer, count: int) -> list[str]:
    async with asyncio.timeout(60):
        while len(messages := await server.messages()) != count:
            await asyncio.sleep(0.02)
    return messages


async def test_basic(tmp_path: Path) -> None:
    agent = make_agent(tmp_path, [GREETING, expect("This is a test message.")], slow=3)
    async with start_standalone(tmp_path, agent=agent) as server:
        await wait_for_stable(server)  # a slow start is not taken for an agent that waits
        assert await server.messages() == ["Hello! I am ready."]
        await server.send("This is a test message.")
        await wait_for_stable(server)
        assert await server.messages() == [
            "Hello! I am ready.", "This is a test message.", "Echo: This is a test message."
        ]  # fmt: skip


async def test_thinking(tmp_path: Path) -> None:
    question = "What is the answer to life, the universe, and everything?"
    entries = [GREETING, expect(question, "Let me think.", 2000), {"responseMessage": "42.", "thinkDurationMS": 1500}]
    async with start_standalone(tmp_path, agent=make_agent(tmp_path, entries)) as server:
        await wait_for_stable(server)
        await server.send(question)
        assert await status(server) == "running"
        events = await wait_for_stable(server)
        assert await server.messages() == ["Hello! I am ready.", question, "Let me think.\n42."]
        statuses = [data["status"] for name, data in events if name == "status_change"]
        assert statuses in (["running", "stable"], ["stable"])


@pytest.mark.parametrize("way", ["terminal", "acp"])
async def test_the_prompt_comes_from_standard_input(tmp_path: Path, way: str) -> None:
    agent = make_agent(tmp_path, [expect("hello agent", "Hello!")], way, slow=0 if way == "acp" else 1)
    flags, greeting = (("--experimental-acp",), []) if way == "acp" else ((), [""])
    async with start_standalone(tmp_path, *flags, agent=agent, stdin="hello agent\n") as server:
        await wait_for_stable(server)
        assert await server.messages() == [*greeting, "hello agent", "Hello!"]


async def test_messages_are_restored_from_the_state_file(tmp_path: Path) -> None:
    entries = [GREETING, expect("First message."), expect("Never sent.")]
    flags = (f"--state-file={tmp_path / 'state.json'}",)
    expected = ["Hello! I am ready.", "First message.", "Echo: First message."]
    async with start_standalone(tmp_path, *flags, agent=make_agent(tmp_path, entries)) as server:
        await wait_for_stable(server)
        await server.send("First message.")
        await wait_for_stable(server)
        assert await server.messages() == expected
        assert await server.wait_for_exit(signal.SIGINT) == 0
    async with start_standalone(tmp_path, *flags, agent=make_agent(tmp_path, entries)) as server:
        assert await wait_for_count(server, 3) == expected
        await wait_for_stable(server)
        assert await server.messages() == expected


async def test_the_initial_prompt_is_sent_once(tmp_path: Path) -> None:
    entries = [GREETING, expect("Test initial prompt"), expect("Different initial prompt")]
    state, prompt = f"--state-file={tmp_path / 'state.json'}", "--initial-prompt=Test initial prompt"
    expected = ["Hello! I am ready.", "Test initial prompt", "Echo: Test initial prompt"]
    for flags in ((state, prompt), (state,), (state, prompt)):
        async with start_standalone(tmp_path, *flags, agent=make_agent(tmp_path, entries)) as server:
            await wait_for_stable(server)
            assert await server.messages() == expected, flags
            assert await server.wait_for_exit(signal.SIGINT) == 0


async def test_a_different_initial_prompt_is_sent(tmp_path: Path) -> None:
    state = f"--state-file={tmp_path / 'state.json'}"
    messages: list[str] = []
    for prompt in ("Test initial prompt", "Different initial prompt"):
        agent = make_agent(tmp_path, [GREETING, expect(prompt)])
        async with start_standalone(tmp_path, state, f"--initial-prompt={prompt}", agent=agent) as server:
            await wait_for_stable(server)
            messages = await server.messages()
            assert await server.wait_for_exit(signal.SIGINT) == 0
    assert messages == [
        "Hello! I am ready.", "Test initial prompt", "Echo: Test initial prompt",
        "Different initial prompt", "Echo: Different initial prompt",
    ]  # fmt: skip


async def test_basic_over_acp(tmp_path: Path) -> None:
    agent = make_agent(tmp_path, [expect("This is a test message."), expect("And one more.", think=500)], "acp")
    async with start_standalone(tmp_path, "--experimental-acp", agent=agent) as server:
        await wait_for_stable(server)
        assert (await server.http.get("/status")).json()["transport"] == "acp"
        assert await server.messages() == []
        await server.send("This is a test message.")
        await wait_for_stable(server)
        expected = ["This is a test message.", "Echo: This is a test message."]
        assert await server.messages() == expected
        await server.send("And one more.")
        assert await status(server) == "running"
        refused = await server.http.post("/message", json={"content": "x", "type": "raw"})
        assert (refused.status_code, "no terminal" in refused.text) == (409, True)
        await wait_for_stable(server)
        assert await server.messages() == [*expected, "And one more.", "Echo: And one more."]


async def test_output_between_turns_is_added_to_the_last_message(tmp_path: Path) -> None:
    later = [{"responseMessage": "A job has ended."}]
    go = tmp_path / "go"
    entries = [GREETING, expect("start a job"), {**later[0], "waitForFile": str(go)}, expect("and now?")]
    async with start_standalone(tmp_path, agent=make_agent(tmp_path, entries)) as server:
        await wait_for_stable(server)
        await server.send("start a job")
        await wait_for_stable(server)
        assert await server.messages() == ["Hello! I am ready.", "start a job", "Echo: start a job"]
        go.touch()
        async with asyncio.timeout(60), server.http.stream("GET", "/events") as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: ") and "Echo: start a job\\nA job has ended." in line:
                    break
        await wait_for_stable(server)
        await server.send("and now?")
        await wait_for_stable(server)
        assert await server.messages() == [
            "Hello! I am ready.", "start a job", "Echo: start a job\nA job has ended.", "and now?", "Echo: and now?"
        ]  # fmt: skip
