"""Test servers of tools that use MCP: a real one over pipes and over HTTP, and its failures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.base import BaseAgent
from midwatch.agents.llm.toolkit import ToolOptions, build_toolkit
from midwatch.agents.llm.tools import Toolbox, tool
from midwatch.base.errors import AgentError, TransientError
from midwatch.programs.reaper import members
from midwatch.testing import RecordingTurn

pytestmark = pytest.mark.usefixtures("no_process_is_left")

FAKE = Path(__file__).parents[1] / "fakes" / "mcp_server.py"
ALL = ["add", "note", "where", "fail", "hang", "die", "large", "child"]


def fake(*arguments: str, **options: Any) -> dict[str, Any]:
    return {"command": [sys.executable, str(FAKE), *arguments], "ask": "never", **options}


@asynccontextmanager
async def open_toolkit(turn: RecordingTurn, *functions: Any, **servers: Any) -> AsyncIterator[Toolbox]:
    options = ToolOptions.read("scout", {"mcp": servers})
    async with build_toolkit(BaseAgent("scout"), options, functions)(turn) as box:
        yield box


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a server over HTTP."""
    port = tmp_path_factory.mktemp("mcp") / "port"
    with subprocess.Popen([sys.executable, str(FAKE), "--http", str(port)], cwd=port.parent) as child:
        try:
            give_up = time.monotonic() + 60
            while not port.exists():
                assert child.poll() is None
                assert time.monotonic() < give_up
                time.sleep(0.02)
            yield f"http://127.0.0.1:{port.read_text()}/mcp"
        finally:
            child.kill()


async def test_tools_work_over_pipes(tmp_path: Path) -> None:
    turn = RecordingTurn(workdir=str(tmp_path))
    async with open_toolkit(turn, it=fake(env={"FLAVOUR": "salt"})) as box:
        assert sorted(box.tools) == sorted(ALL)
        assert (await box.run("add", '{"a": 2, "b": 3}', turn)).text == "5"
        pid, workdir, mark, flavour = (await box.run("where", "", turn)).text.split()
        assert (workdir, mark, flavour) == (str(tmp_path), f"{turn.task_id}/1", "salt")
        assert box.tools["add"].kind == "search"
        assert box.tools["add"].safe
        assert not box.tools["note"].safe
        assert box.tools["add"].description == "Add two numbers."
        started = int((await box.run("child", "", turn)).text)
        assert members(turn.groups[0]) >= {int(pid), started}
        failed = await box.run("fail", "", turn)
        assert failed.is_error
        assert "no tide today" in failed.text
        wrong = await box.run("add", '{"a": "two"}', turn)
        assert wrong.is_error
        large = await box.run("large", '{"size": 5000000}', turn)
        assert "characters are left out" in large.text
    assert not members(turn.groups[0])
    assert not alive(started)


async def test_tools_work_over_http(address: str) -> None:
    turn = RecordingTurn()
    async with open_toolkit(turn, it={"url": address, "ask": "never"}) as box:
        assert sorted(box.tools) == sorted(ALL)
        outputs = await asyncio.gather(*(box.run("add", {"a": n, "b": 1}, turn) for n in range(5)))
        assert [output.text for output in outputs] == ["1", "2", "3", "4", "5"]
        assert (await box.run("fail", "", turn)).is_error
        assert "characters are left out" in (await box.run("large", {"size": 5_000_000}, turn)).text
    assert not turn.groups


async def test_a_tool_that_is_not_read_only_needs_approval(tmp_path: Path) -> None:
    turn = RecordingTurn(workdir=str(tmp_path), answers=["no", "yes"])
    async with open_toolkit(turn, it=fake("--tools", "add,note", ask="writes")) as box:
        assert (await box.run("add", {"a": 1, "b": 1}, turn)).text == "2"
        assert not turn.asked
        assert "not allowed" in (await box.run("note", {"text": "x"}, turn)).text
        assert not (tmp_path / "notes.txt").exists()
        assert (await box.run("note", {"text": "x"}, turn)).text == "noted"
    assert {(question.kind, question.tool, question.text) for question in turn.asked} == {
        ("other", "it/note", 'Use note of it with {"text": "x"}')
    }


async def test_a_duplicate_tool_name_is_prefixed_with_its_server() -> None:
    @tool
    def add() -> str:
        """Another one."""
        return "ours"

    turn = RecordingTurn()
    async with open_toolkit(turn, add, one=fake("--tools", "add,where"), two=fake("--tools", "where")) as box:
        assert sorted(box.tools) == ["add", "one_add", "one_where", "two_where"]
        assert (await box.run("add", "", turn)).text == "ours"
        assert (await box.run("one_add", {"a": 1, "b": 1}, turn)).text == "2"

    @tool(name="one_add")
    def list_server_tools() -> None: ...

    with pytest.raises(AgentError, match=r"agents\.scout\.mcp.*: .*two tools .*named '.*add'"):
        async with open_toolkit(turn, add, list_server_tools, one=fake("--tools", "add")):
            pass


async def test_noise_on_the_connection_is_ignored() -> None:
    turn = RecordingTurn()
    async with open_toolkit(turn, it=fake("--noise", "--tools", "add")) as box:
        assert (await box.run("add", {"a": 1, "b": 1}, turn)).text == "2"


async def test_a_dead_server_is_an_error_of_its_tools() -> None:
    turn = RecordingTurn()
    async with open_toolkit(turn, it=fake()) as box:
        for _ in range(2):
            output = await box.run("die", "", turn)
            assert output.is_error
            assert "the server it" in output.text
            assert "I leave" in output.text
    assert not members(turn.groups[0])


async def test_a_hanging_server_is_an_error_of_its_tools(address: str) -> None:
    turn = RecordingTurn()
    async with open_toolkit(turn, it=fake(timeout=3), far={"url": address, "timeout": 3, "ask": "never"}) as box:
        for name in ("it_hang", "far_hang"):
            output = await box.run(name, "", turn)
            assert output.is_error
            assert "it failed" in output.text or "did not answer within 3 s" in output.text or "imed out" in output.text
        assert (await box.run("it_add", {"a": 1, "b": 1}, turn)).text == "2"
        assert (await box.run("far_add", {"a": 1, "b": 1}, turn)).text == "2"


async def test_a_cancelled_call_keeps_its_server_running() -> None:
    turn = RecordingTurn()
    async with open_toolkit(turn, it=fake()) as box:
        call = asyncio.create_task(box.run("hang", "", turn))
        assert (await box.run("add", {"a": 1, "b": 1}, turn)).text == "2"
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await box.run("add", {"a": 1, "b": 1}, turn)).text == "2"


async def test_a_server_that_does_not_exit_is_killed() -> None:
    turn = RecordingTurn()
    async with open_toolkit(turn, it=fake("--stubborn", "--tools", "add")):
        pass
    assert not members(turn.groups[0])


@pytest.mark.parametrize(
    ("server", "told", "kind"),
    [
        ({"command": ["no-such-server-here"]}, "program 'no-such-server-here' is not installed", AgentError),
        ({"command": ["sh", "-c", "echo wrong key >&2; exit 1"]}, "wrong key", TransientError),
        ({**fake("--mute"), "start_timeout": 0.5}, "did not list its tools within 0.5 s", TransientError),
        ({"command": ["sleep", "300"], "start_timeout": 0.5}, "did not list its tools within 0.5 s", TransientError),
        ({"command": ["yes"], "start_timeout": 30}, "the server could not be used", TransientError),
        ({"url": "http://127.0.0.1:9/mcp"}, "the server could not be used", TransientError),
    ],
)
async def test_a_server_that_does_not_start_is_reported(server: Any, told: str, kind: type[Exception]) -> None:
    turn = RecordingTurn()
    with pytest.raises(kind, match=told):
        async with open_toolkit(turn, it=server):
            pass
    assert not any(members(group) for group in turn.groups)


async def test_servers_end_with_a_cancelled_turn() -> None:
    turn, started = RecordingTurn(), asyncio.Event()

    async def work() -> None:
        async with open_toolkit(turn, it=fake("--tools", "hang")) as box:
            started.set()
            await box.run("hang", "", turn)

    working = asyncio.create_task(work())
    await started.wait()
    assert members(turn.groups[0])
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert not members(turn.groups[0])
