"""Run a command for a task like a program of the task's agent: in its sandbox, with its limits and its variables."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from midwatch.agents.base import BaseAgent, ProgramAgent, absolute_path, last_lines
from midwatch.domain.agent import Agent, ProgramOwner
from midwatch.domain.probe import CommandResult
from midwatch.programs.process import TOGETHER, Child, Output, Pipe, Program, describe_exit, wait_within

OUTPUT_LIMIT = 200_000
"""The most bytes of the output that are kept; of more, the head and the tail."""
SHELL = ("/bin/sh", "-c")
ANNOUNCE = 'printf "%s\\n" "$1"; exec /bin/sh -c "$2"'
"""Prints a mark before the command. Without the mark, the exit status is that of a sandbox that could not start."""


async def run_command(agent: Agent, command: str, turn: ProgramOwner, seconds: float) -> CommandResult:
    """Run a command for at most `seconds`, and return its result. If this call is cancelled, the command is ended.

    Raise AgentError or TransientError if no program can be started.
    """
    mark = f"midwatch-{secrets.token_hex(8)}"
    program = build_command(agent, (*SHELL, ANNOUNCE, "sh", mark, command), turn.workdir)
    output, began = Output(OUTPUT_LIMIT), time.monotonic()
    child = await Child.spawn(program, turn, output, Pipe())
    try:
        await child.admit(turn)
        in_time = await wait_within(seconds, child.exited) or child.returncode is not None
        if not in_time:
            child.interrupt("terminate")
    finally:
        await child.end()
    before, begun, text = output.text().partition(f"{mark}\n")
    took, code = time.monotonic() - began, child.returncode
    if not in_time:
        return CommandResult(None, text, took, f"it ran longer than {seconds:g} s and was ended")
    if not begun:
        return CommandResult(None, "", took, f"it did not start: {last_lines(before) or describe_exit(code)}")
    return CommandResult(code, text, took, describe_exit(code) if code is None or code < 0 else None)


def build_command(agent: Agent, argv: tuple[str, ...], workdir: str | None) -> Program:
    """Return the program for a command line, with the sandbox, the limits and the variables of the agent."""
    workdir = workdir or agent.terms.workdir
    if isinstance(agent, ProgramAgent):
        program: Program = agent.program(argv, workdir)
    elif isinstance(agent, BaseAgent):
        program = agent.build_program(argv, workdir)
    else:
        program = Program(agent=agent.name, argv=argv, workdir=absolute_path(workdir), sandbox=None)
    return replace(program, enter=TOGETHER)
