"""Built-in tools that read files below a root directory and run commands. The option `tools` enables them."""

from __future__ import annotations

import fnmatch
import os
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from midwatch.agents.acp.files import Files, Refused
from midwatch.agents.base import BaseAgent, absolute_path
from midwatch.agents.llm.tools import Tool, ToolError, ToolOutput, make
from midwatch.base.threads import in_thread
from midwatch.domain.agent import Turn
from midwatch.domain.tool_call import ToolFacts
from midwatch.programs.process import TOGETHER, Child, Output, Pipe, Program, wait_within
from midwatch.programs.reaper import end_strays

MOST_LINES = 2000
LONGEST_PAGE = 60_000  # characters of a file that are read at once
MOST_NAMES = 1000
MOST_LOOKED_AT = 200_000  # files that a listing checks before it stops
OUTPUT_LIMIT = 60_000  # bytes of a command's output that a model gets; of more, head and tail
SHELL = ("/bin/sh", "-c")


# -- files -------------------------------------------------------------------------------------------------------


def file_tools(root: str | None) -> list[Tool]:
    """Return the tools that read and list files below `root`; without `root`, below the turn's directory."""

    async def read_file(
        turn: Turn,
        path: Annotated[str, Field(description="Relative to the root directory.")],
        offset: Annotated[int, Field(ge=1, description="The first line; lines are counted from 1.")] = 1,
        limit: Annotated[int, Field(ge=1, le=MOST_LINES, description="The maximum number of lines.")] = MOST_LINES,
    ) -> str:
        """Read lines of a text file below the root directory."""
        files = Files(absolute_path(root or turn.workdir))
        return await in_thread(lambda: _read(files, path, offset, limit))

    async def list_files(
        turn: Turn,
        pattern: Annotated[str, Field(description="A glob such as *.md or src/**/*.py.", max_length=1000)] = "**",
        path: Annotated[str, Field(description="The directory to search, relative to the root directory.")] = ".",
    ) -> str:
        """List files below the root directory. ** stands for any number of directories. .git is left out."""
        files = Files(absolute_path(root or turn.workdir))
        return await in_thread(lambda: _list(files, pattern, path))

    def read(arguments: Mapping[str, Any], turn: Turn) -> ToolFacts:
        path, pattern = arguments.get("path"), arguments.get("pattern")
        steps = pattern.split("/")[:-1] if isinstance(pattern, str) else []
        folder = "/".join(step for step in steps if step != "**")
        base = path if isinstance(path, str) else "."
        return {"paths": (base, *([f"{base}/{folder}"] if folder else [])), "root": absolute_path(root or turn.workdir)}

    return [make(read_file, safe=True, kind="read", read=read), make(list_files, safe=True, kind="search", read=read)]


def _read(files: Files, path: str, offset: int, limit: int) -> str:
    try:
        lines = files.read(path, offset, limit + 1).splitlines(keepends=True)
    except (Refused, OSError) as problem:
        raise _convert_error(path, problem) from None
    if any("\0" in line for line in lines):
        size = Path(files.place(path)).stat().st_size
        raise ToolError(f"{path} is a binary file of {size} bytes; it cannot be read as text.")
    if not lines:
        return f"{path} is empty." if offset == 1 else f"{path} has fewer than {offset} lines."
    shown, size = 0, 0
    for line in lines[:limit]:
        if size + len(line) > LONGEST_PAGE and shown:
            break
        shown, size = shown + 1, size + len(line)
    text = "".join(lines[:shown])
    if len(text) > LONGEST_PAGE:
        text = f"{text[:LONGEST_PAGE]}\n… line {offset} is {size} characters long; the rest of it is left out …\n"
    more = len(lines) > shown
    return f"{text}\n… there is more; go on with offset {offset + shown} …" if more else text


def _list(files: Files, pattern: str, path: str) -> str:
    try:
        base = files.place(path)
        if not Path(base).is_dir():
            raise Refused(f"{path} is not a directory")
        glob = (pattern if "/" in pattern else f"**/{pattern}").split("/")
        names: list[str] = []
        for looked, name in enumerate(_walk(base)):
            if _fits(name.rstrip("/").split("/"), glob):
                names.append(name)
            if len(names) >= MOST_NAMES or looked >= MOST_LOOKED_AT:
                names.append(f"… there may be more than these {len(names)}; narrow the pattern …")
                break
    except (Refused, OSError) as problem:
        raise _convert_error(path, problem) from None
    return "\n".join(names) or f"no file in {path} matches {pattern}."


def _fits(steps: list[str], glob: list[str]) -> bool:
    """Return whether the parts of a path match the parts of a glob. The time is short for every glob."""
    reached = _skip_stars({0}, glob)
    for step in steps:
        stay = {at for at in reached if at < len(glob) and glob[at] == "**"}
        on = {at + 1 for at in reached - stay if at < len(glob) and fnmatch.fnmatchcase(step, glob[at])}
        reached = _skip_stars(stay | on, glob)
    return len(glob) in reached


def _skip_stars(reached: set[int], glob: list[str]) -> set[int]:
    """Add the position after each reached `**`, because `**` may match no directory."""
    for at in range(len(glob)):
        if at in reached and glob[at] == "**":
            reached.add(at + 1)
    return reached


def _walk(base: str) -> Iterator[str]:
    """Yield the names of all files and directories below `base`, without `.git`.

    The name of a directory ends with a slash. A link is yielded but not followed.
    """
    for folder, folders, names in os.walk(base):
        folders[:] = sorted(name for name in folders if name != ".git")
        above = os.path.relpath(folder, base)
        prefix = "" if above == "." else f"{above}/"
        yield from (f"{prefix}{name}/" for name in folders)
        yield from (f"{prefix}{name}" for name in sorted(names))


def _convert_error(path: str, problem: Refused | OSError) -> ToolError:
    if isinstance(problem, Refused):
        return ToolError(f"{problem}.")
    return ToolError(f"{path[:300]}: {problem.strerror}.")


# -- commands ----------------------------------------------------------------------------------------------------


class Commands:
    """The tool that runs commands in the turn's directory. A rule of the agent or a person must allow each command."""

    def __init__(self, agent: BaseAgent, longest: float) -> None:
        self._agent = agent
        self._longest = longest

    @asynccontextmanager
    async def open(self, turn: Turn, taken: frozenset[str]) -> AsyncIterator[Sequence[Tool]]:
        """Yield the tool. After an interruption or a timeout, also end processes that left the command's group."""
        cut_off = False

        async def run_command(
            turn: Turn,
            command: Annotated[
                str | list[str],
                Field(description="A line for the shell, or a program and its arguments.", min_length=1),
            ],
            timeout: Annotated[float | None, Field(gt=0, description="Time limit in seconds.")] = None,
        ) -> ToolOutput:
            """Run a command in the working directory. Its standard input is empty. Background processes are ended."""
            nonlocal cut_off
            argv = (*SHELL, command) if isinstance(command, str) else tuple(command)
            workdir = absolute_path(turn.workdir)
            longest = min(timeout or self._longest, self._longest)
            was_cut_off = cut_off
            cut_off = True
            output, code = await self._run(self._program(argv, workdir), turn, longest)
            cut_off = was_cut_off or code is None
            return _make_output(output, code, longest)

        try:
            yield [make(run_command, kind="execute", ask=True, read=_read_command)]
        except BaseException:
            cut_off = True
            raise
        finally:
            if cut_off:
                await end_strays(turn.task_id, turn.attempt)

    def _program(self, argv: tuple[str, ...], workdir: str) -> Program:
        program = self._agent.build_program(argv, workdir, enter=TOGETHER)
        if not Path(workdir).is_dir():
            raise ToolError(f"the working directory {workdir} does not exist.")
        if why := program.problem():
            raise ToolError(why.partition(";")[0] + ".")
        return program

    async def _run(self, program: Program, turn: Turn, longest: float) -> tuple[str, int | None]:
        """Run a command and return its output and its exit code. After a timeout, the exit code is None."""
        output = Output(OUTPUT_LIMIT)
        child = await Child.spawn(program, turn, output, Pipe(), helper=True)
        try:
            await child.admit(turn)
            in_time = await wait_within(longest, child.exited) or child.returncode is not None
            if not in_time:
                child.interrupt("terminate")
        finally:
            await child.end()
        return output.text(), child.returncode if in_time else None


def _read_command(arguments: Mapping[str, Any], turn: Turn) -> ToolFacts:
    """Return what a call of the tool would run. Raise ToolError if this is no command."""
    command = arguments.get("command")
    line = command if isinstance(command, str) else shlex.join(map(str, command or ()))
    if "\0" in line or not line.strip():
        raise ToolError("a command must not be empty and must not contain a NUL character.")
    return {"text": f"Run {line}", "command": line, "root": absolute_path(turn.workdir)}


def _make_output(output: str, code: int | None, longest: float) -> ToolOutput:
    if code is None:
        return ToolOutput(f"{output}\n… ended after {longest:g} s …", is_error=True)
    if code == 0:
        return ToolOutput(output or "exit code 0, no output")
    how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    return ToolOutput(f"{output}\n… {how} …", is_error=True)
