"""Test the built-in tools: files below a root and commands in real processes, with valid and hostile input."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from midwatch.agents.base import BaseAgent
from midwatch.agents.llm.builtin import MOST_NAMES, OUTPUT_LIMIT
from midwatch.agents.llm.toolkit import BUILT_IN, ToolOptions, build_toolkit
from midwatch.agents.llm.tools import Toolbox, ToolOutput, tool
from midwatch.base.errors import AgentError, BadConfig
from midwatch.domain.agent import Answer
from midwatch.domain.tool_name import OWN_KINDS
from midwatch.programs.reaper import members
from midwatch.testing import RecordingTurn

pytestmark = pytest.mark.usefixtures("no_process_is_left")


class Scout(BaseAgent):
    kind = "llm"
    starts_programs = True


@asynccontextmanager
async def open_toolkit(turn: RecordingTurn, *functions: Any, **options: Any) -> AsyncIterator[Toolbox]:
    async with build_toolkit(Scout("scout"), ToolOptions.read("scout", options), functions)(turn) as box:
        yield box


async def use(turn: RecordingTurn, name: str, arguments: Mapping[str, Any], **options: Any) -> ToolOutput:
    async with open_toolkit(turn, **options) as box:
        return await box.run(name, arguments, turn)


# -- options -----------------------------------------------------------------------------------------------------


async def test_tools_are_disabled_by_default() -> None:
    async with open_toolkit(RecordingTurn()) as box:
        assert not box.tools
    async with open_toolkit(RecordingTurn(), tools=BUILT_IN) as box:
        assert {name: (tool.kind, tool.safe) for name, tool in box.tools.items()} == {
            "read_file": ("read", True), "list_files": ("search", True), "run_command": ("execute", False),
            "fetch_url": ("fetch", True), "submit_task": ("other", False), "schedule_task": ("other", False),
            "list_tasks": ("search", True), "get_task": ("search", True), "goal_complete": ("other", True),
            "goal_delay": ("other", True),
        }  # fmt: skip
        assert {name: tool.kind for name, tool in box.tools.items()} == OWN_KINDS, "a test of rules knows them"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": ["shell"]}, "agents.scout.tools.0: must be one of files, command, fetch, desk, or a function"),
        ({"mcp": {"x": {}}}, "agents.scout.mcp.x: set either `command` or `url`"),
        ({"mcp": {"x": {"url": "ftp://x"}}}, "must begin with http"),
        ({"mcp": {"a b": {"url": "http://x"}}}, "a server's name"),
        ({"command_timeout": "soon"}, "agents.scout.command_timeout"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadConfig, match=told):
        ToolOptions.read("scout", options)


async def test_functions_come_from_the_settings_or_from_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "our_tools_of_this_test.py").write_text('def hello(name: str) -> str:\n    return f"hello {name}"\n')
    monkeypatch.syspath_prepend(tmp_path)

    def here() -> str:
        return "here"

    turn = RecordingTurn()
    async with open_toolkit(turn, here, tools=["our_tools_of_this_test:hello"]) as box:
        assert (await box.run("hello", '{"name": "Ada"}', turn)).text == "hello Ada"
        assert (await box.run("here", "", turn)).text == "here"
    for name, problem in (
        ("our_tools_of_this_test:nobody", "no attribute"),
        ("no_such_module:x", "ModuleNotFoundError"),
    ):
        with pytest.raises(AgentError, match=problem):
            async with open_toolkit(turn, tools=[name]):
                pass
    with pytest.raises(AgentError, match="two tools are named 'hello'"):
        async with open_toolkit(turn, tool(name="hello")(here), tools=["our_tools_of_this_test:hello"]):
            pass


async def test_a_function_can_require_approval() -> None:
    pressed = []

    @tool(ask=True, kind="delete")
    def launch(target: str) -> str:
        pressed.append(target)
        return "gone"

    turn = RecordingTurn(answers=["no", Answer("granted", "yes")])
    async with open_toolkit(turn, launch) as box:
        refused = await box.run("launch", {"target": "moon"}, turn)
        assert refused.is_error
        assert "not allowed" in refused.text
        assert not pressed
        assert (await box.run("launch", {"target": "moon"}, turn)).text == "gone"
    assert (turn.asked[0].kind, turn.asked[0].tool) == ("delete", "launch")
    assert turn.asked[0].text == 'Use launch with {"target": "moon"}'


# -- files -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("x")
    (root / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))
    (root / "src" / "b.py").write_text("print()\n")
    (root / "src" / "deep" / "c.py").write_text("")
    (tmp_path / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "up").symlink_to(tmp_path)
    return root


async def read(tree: Path, path: str, **more: Any) -> ToolOutput:
    return await use(RecordingTurn(workdir=str(tree)), "read_file", {"path": path, **more}, tools=["files"])


async def test_a_file_is_read_by_line_range(tree: Path) -> None:
    assert (await read(tree, "src/b.py")).text == "print()\n"
    part = await read(tree, "a.txt", offset=3, limit=2)
    assert part.text == "line 3\nline 4\n\n… there is more; go on with offset 5 …"
    assert (await read(tree, "a.txt", offset=9)).text == "line 9\nline 10\n"
    assert (await read(tree, "a.txt", offset=99)).text == "a.txt has fewer than 99 lines."
    assert (await read(tree, "src/deep/c.py")).text == "src/deep/c.py is empty."


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("../secret.txt", "outside"),
        ("link.txt", "outside"),
        ("up/secret.txt", "outside"),
        ("/etc/passwd", "outside"),
        ("src/../../secret.txt", "outside"),
        ("a\0b", "NUL"),
        ("nothing.txt", "No such file"),
        ("src", "not a regular file"),
        ("pipe", "not a regular file"),
        ("x" * 5000, "File name too long"),
    ],
)
async def test_a_file_outside_the_root_or_unreadable_is_refused(tree: Path, path: str, told: str) -> None:
    os.mkfifo(tree / "pipe")
    output = await read(tree, path)
    assert output.is_error
    assert told in output.text
    assert "secret\n" not in output.text


async def test_binary_and_huge_files_are_reported(tree: Path) -> None:
    (tree / "image.png").write_bytes(b"\x89PNG\0\0\1\2")
    assert "image.png is a binary file of 8 bytes" in (await read(tree, "image.png")).text
    with (tree / "huge").open("wb") as file:
        file.truncate(3_000_000_000)
    assert "longer than" in (await read(tree, "huge")).text
    (tree / "long.txt").write_text("y" * 1_000_000)
    long = (await read(tree, "long.txt")).text
    assert len(long) < 70_000
    assert "1000000 characters long" in long
    (tree / "wide.txt").write_text(("z" * 999 + "\n") * 1000)
    wide = (await read(tree, "wide.txt")).text
    assert wide.endswith("… there is more; go on with offset 61 …")


async def test_the_root_may_differ_from_the_working_directory(tree: Path, tmp_path: Path) -> None:
    turn = RecordingTurn(workdir=str(tmp_path))
    output = await use(turn, "read_file", {"path": "b.py"}, tools=["files"], root=str(tree / "src"))
    assert output.text == "print()\n"


async def list_lines(tree: Path, **arguments: Any) -> list[str]:
    output = await use(RecordingTurn(workdir=str(tree)), "list_files", arguments, tools=["files"])
    return output.text.split("\n")


async def test_files_are_listed(tree: Path) -> None:
    assert await list_lines(tree) == ["src/", "up/", "a.txt", "link.txt", "src/deep/", "src/b.py", "src/deep/c.py"]
    assert await list_lines(tree, pattern="*.py") == ["src/b.py", "src/deep/c.py"]
    assert await list_lines(tree, pattern="src/*.py") == ["src/b.py"]
    assert await list_lines(tree, pattern="src/**/*.py") == ["src/b.py", "src/deep/c.py"]
    assert await list_lines(tree, pattern="*.py", path="src/deep") == ["c.py"]
    assert await list_lines(tree, pattern="*.rs") == ["no file in . matches *.rs."]


async def test_listing_survives_hostile_names_and_links(tree: Path) -> None:
    assert "outside" in (await list_lines(tree, path=".."))[0]
    assert "outside" in (await list_lines(tree, path="up"))[0]
    assert "not a directory" in (await list_lines(tree, path="a.txt"))[0]
    (tree / ("a" * 200)).write_text("")
    for pattern in ("a*" * 400 + "b", "**/" * 300 + "b", "[" * 900, "../*"):
        assert (await list_lines(tree, pattern=pattern))[0].startswith("no file")
    many = tree / "many"
    many.mkdir()
    for n in range(MOST_NAMES + 5):
        (many / f"{n}.x").touch()
    names = await list_lines(tree, pattern="*.x")
    assert len(names) == MOST_NAMES + 1
    assert "narrow the pattern" in names[-1]


# -- commands ----------------------------------------------------------------------------------------------------


async def run(command: Any, turn: RecordingTurn | None = None, **options: Any) -> ToolOutput:
    turn = turn or RecordingTurn(answers=["yes"])
    return await use(turn, "run_command", {"command": command}, tools=["command"], **options)


async def test_a_command_needs_approval_and_runs_in_the_directory_of_the_turn(tmp_path: Path) -> None:
    turn = RecordingTurn(answers=["yes"], workdir=str(tmp_path))
    output = await run("pwd; echo to error >&2; cat; echo $MIDWATCH_TASK", turn)
    assert output == ToolOutput(f"{tmp_path}\nto error\n{turn.task_id}/1\n")
    assert len(turn.groups) == 1
    assert not members(turn.groups[0])
    question = turn.asked[0]
    assert (question.kind, question.tool, question.root) == ("execute", "run_command", str(tmp_path))
    assert question.command == "pwd; echo to error >&2; cat; echo $MIDWATCH_TASK"


async def test_arguments_are_not_interpreted_by_a_shell() -> None:
    turn = RecordingTurn(answers=["yes"])
    output = await run(["echo", "$HOME", "a b; exit 3"], turn)
    assert output.text == "$HOME a b; exit 3\n"
    assert turn.asked[0].command == "echo '$HOME' 'a b; exit 3'"


async def test_a_denied_command_is_not_run(tmp_path: Path) -> None:
    turn = RecordingTurn(answers=[Answer("denied", "no", "not today")], workdir=str(tmp_path))
    output = await run("touch here", turn)
    assert output.is_error
    assert "not today" in output.text
    assert not turn.groups
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "ended by signal 9"),
        (["no-such-program-here"], "program 'no-such-program-here' is not installed"),
        (["./nothing"], "not installed or not executable"),
        ("   ", "must not be empty"),
        ("echo \0", "NUL"),
        ([], "at least 1"),
        ("", "at least 1"),
        (7, "should be a valid"),
    ],
)
async def test_a_failing_command_is_reported(command: Any, told: str) -> None:
    output = await run(command)
    assert output.is_error
    assert told in output.text


async def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    output = await run("pwd", RecordingTurn(answers=["yes"], workdir=str(tmp_path / "gone")))
    assert output.text == f"the working directory {tmp_path / 'gone'} does not exist."


async def test_long_output_is_truncated_in_the_middle() -> None:
    output = await run(f"{sys.executable} -c \"print('a' * 5_000_000 + 'the end')\"")
    assert len(output.text) < OUTPUT_LIMIT + 200
    assert "bytes left out" in output.text
    assert output.text.endswith("the end\n")


async def test_invalid_characters_and_nul_are_replaced() -> None:
    output = await run(r"printf 'a\000b\377c'")
    assert output.text == "ab\ufffdc"


async def test_a_command_that_times_out_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    turn = RecordingTurn(answers=["yes"], workdir=str(tmp_path))
    code = "import subprocess, os; p = subprocess.Popen(['sleep', '300'], start_new_session=True); print(p.pid)"
    output = await run(
        f"echo begun; {sys.executable} -c {shlex.quote(code)}; sleep 300 & sleep 300", turn, command_timeout=10
    )
    assert output.is_error
    assert output.text.startswith("begun\n")
    assert "ended after 10 s" in output.text
    assert not members(turn.groups[0])
    away = int(output.text.splitlines()[1])
    with suppress(FileNotFoundError, ProcessLookupError):
        assert b"sleep" not in Path(f"/proc/{away}/cmdline").read_bytes()


async def test_a_model_may_shorten_the_timeout_but_not_extend_it() -> None:
    turn = RecordingTurn(answers=["yes", "yes"])
    async with open_toolkit(turn, tools=["command"], command_timeout=0.3) as box:
        for timeout in (0.1, 1000):
            output = await box.run("run_command", {"command": "sleep 300", "timeout": timeout}, turn)
            assert f"ended after {min(timeout, 0.3):g} s" in output.text


async def test_background_processes_are_ended() -> None:
    turn = RecordingTurn(answers=["yes"])
    output = await run("sleep 300 & echo done", turn)
    assert output.text == "done\n"
    assert not members(turn.groups[0])


async def test_a_command_ends_with_its_turn(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    turn = RecordingTurn(answers=["yes"], workdir=str(tmp_path))
    call = asyncio.create_task(run("trap '' TERM; echo > begun; sleep 300", turn))
    await asyncio.to_thread((tmp_path / "begun").read_bytes)
    assert members(turn.groups[0])
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not members(turn.groups[0])


async def test_parallel_commands_do_not_end_each_other() -> None:
    turn = RecordingTurn(answers=["yes"] * 4)
    async with open_toolkit(turn, tools=["command"]) as box:
        calls = [box.run("run_command", {"command": f"sleep 0.{n}; echo {n}"}, turn) for n in range(4)]
        assert [output.text for output in await asyncio.gather(*calls)] == ["0\n", "1\n", "2\n", "3\n"]
