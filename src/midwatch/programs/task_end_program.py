"""The program that is started after the end of each task, with the task as JSON on standard input."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence

import orjson

from midwatch.base.errors import AgentError
from midwatch.domain.task import Task

ERROR_SHOWN = 500


def make_runner(command: Sequence[str], env: Callable[[], Mapping[str, str]]) -> Callable[[Task], Awaitable[None]]:
    """Return a function that runs `command` for a task. `env` returns more environment variables for the program.

    The function raises AgentError if the program fails. If its call is cancelled, the program is killed.
    """

    async def run(task: Task) -> None:
        about = {"MIDWATCH_TASK": task.id, "MIDWATCH_SESSION": task.session_key, "MIDWATCH_STATUS": task.status}
        if task.cause_id is not None:
            about[f"MIDWATCH_{task.cause.upper()}"] = task.cause_id
        child = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, **env(), **about}, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            _, errors = await child.communicate(orjson.dumps(task.snapshot(), default=str))
        except asyncio.CancelledError:
            child.kill()
            await child.wait()
            raise
        if child.returncode:
            exited = f"{command[0]} failed with exit code {child.returncode}; correct the program."
            raise AgentError(f"{exited} Its output: {errors.decode(errors='replace')[-ERROR_SHOWN:]}")

    return run
