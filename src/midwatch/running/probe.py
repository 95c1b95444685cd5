"""Probes: run the command of a task before its agent is opened, or after its turn, and say what follows from it.

The command runs in the directory of the task, like a program of its agent. Its start and its end are events of the
turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from midwatch.base.clock import iso
from midwatch.base.errors import AgentError, LeaseLost, MidwatchError
from midwatch.base.text import cut, cut_front, fence
from midwatch.domain.agent import Agent
from midwatch.domain.changes import Changes, Update
from midwatch.domain.event import ProbeEnd, ProbeStart
from midwatch.domain.notice import start_notice
from midwatch.domain.probe import ERROR_SHOWN, PROMPT_SHOWN, CommandResult, Probe
from midwatch.domain.run_env import hide_values
from midwatch.domain.task import Task, tell_end
from midwatch.running.host import Host
from midwatch.running.outcome import TurnOutcome, sanitize
from midwatch.running.run import Run
from midwatch.running.turn import LiveTurn

log = logging.getLogger("midwatch.worker")

SKIP_STATUS = 1
"""The exit status of a command `when` that skips the run."""
RESULT_SHOWN = 2000
"""The most characters of an earlier result in a prompt."""


async def run_probe(host: Host, run: Run, turn: LiveTurn, agent: Agent, probe: Probe) -> CommandResult:
    """Run a command and return its result, also if it could not start, took too long or was stopped."""
    turn.report(ProbeStart(probe=probe.which, command=probe.command, timeout=probe.seconds))
    turn.log.flush_soon()
    running = host.run_command(agent, probe.command, turn, probe.seconds)
    run.command = asyncio.get_running_loop().create_task(running)
    if run.reason is not None:
        run.command.cancel()
    try:
        result = await run.command
    except asyncio.CancelledError:
        result = CommandResult(None, problem="it was stopped together with its task", stopped=True)
    except LeaseLost:
        raise
    except MidwatchError as problem:
        result = CommandResult(None, problem=f"it could not be started: {str(problem).rstrip('.')}")
    finally:
        run.command = None
    result = result._replace(output=hide_values(sanitize(result.output), turn.run_env))
    end = ProbeEnd(
        probe=probe.which, passed=result.passed, exit_status=result.status, duration=round(result.seconds, 3),
        output=cut_front(result.output.strip(), ERROR_SHOWN), error=result.problem,
    )  # fmt: skip
    turn.report(end)
    turn.log.flush_soon()
    return result


async def prepare_run(host: Host, run: Run, turn: LiveTurn, agent: Agent) -> TurnOutcome | None:
    """Give the turn of an automation's run what the automation has for it: variables, and blocks for the prompt.

    Return None, or the outcome if the command `when` decides that the agent is not called.
    """
    task = run.task
    if task.cause != "automation" or task.cause_id is None:
        return None
    automation = await host.store.get_automation(task.cause_id)
    turn.run_env = (automation.env if automation is not None else None) or {}
    blocks = []
    probe = Probe.of(task.probe)
    if probe is not None and probe.which == "when":
        if probe.output is None:
            probe, outcome = await _decide(host, run, turn, agent, probe)
            if outcome is not None:
                return outcome
        blocks.append(probe.write_output())
    if automation is not None and automation.history and (automation.fresh or turn.thread_id is None):
        blocks.append(write_results(await host.store.list_results(automation.id, automation.history)))
    turn.prompt = "\n\n".join([turn.prompt, *filter(None, blocks)])
    return None


async def _decide(
    host: Host, run: Run, turn: LiveTurn, agent: Agent, probe: Probe
) -> tuple[Probe, TurnOutcome | None]:  # fmt: skip
    """Run the command `when`. Return it with its output, and the outcome of the run if the agent is not called.

    If the run begins, this is stored first: a later attempt must not skip the work that the agent has begun.
    """
    result = await run_probe(host, run, turn, agent, probe)
    if result.stopped:
        raise AgentError("the task was stopped before its command ended.")
    if result.status == SKIP_STATUS:
        return probe, TurnOutcome("skipped", text=f"Skipped: {result.tell(probe.command)}")
    turn.enter_conversation()
    if not result.passed:
        return probe, TurnOutcome("error", error=f"the command `when` failed: {result.tell(probe.command)}")
    probe = replace(probe, output=cut_front(result.output.strip(), PROMPT_SHOWN))
    run.task = run.task._replace(probe=probe.data())
    update = Update("task", run.task.id, {"probe": probe.data()})
    notice = start_notice(run.task, host.clock.now())
    await turn.log.write(Changes(fence=run.fence, updates=(update,), deliveries=notice))
    return probe, None


def write_results(newest_first: Sequence[Task]) -> str:
    """Return the results of earlier runs as a block for the prompt, newest last; an empty text if there are none."""
    parts = []
    for task in reversed(newest_first):
        text = cut((task.result if task.outcome == "silent" else tell_end(task)) or "(no text)", RESULT_SHOWN)
        parts.append(f"{iso(task.completed_at)}, {task.id}:\n{text}")
    return fence("\n\n".join(parts), "Results of earlier runs of this automation, the newest last") if parts else ""


async def check_goal(host: Host, run: Run, turn: LiveTurn, agent: Agent | None, outcome: TurnOutcome) -> None:
    """Run the command that checks the goal, after the turn of a step, and keep its result in `run.check`.

    The attempt ends only after the command: if this process dies meanwhile, the step is rescued like a step whose turn
    was interrupted. No command runs after a step that failed, that was stopped, or whose agent waits for something.
    """
    probe = Probe.of(run.task.probe)
    if probe is None or probe.which != "check" or agent is None:
        return
    if run.goal_id is None or run.reason is not None or outcome.outcome not in ("ok", "silent"):
        return
    try:
        goal = await host.store.get_goal(run.goal_id)
        if goal is None or goal.status != "active" or goal.work != "step" or goal.proposal == "delay":
            return
        run.check = await run_probe(host, run, turn, agent, probe)
    except Exception as problem:  # the outcome of the turn must not be lost
        log.warning("the check of goal %s did not run after task %s: %r", run.goal_id, run.task.id, problem)
