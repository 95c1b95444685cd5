"""What follows the events of a desk in a process that runs tasks: programs, telemetry, event logs and triggers."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from midwatch.desk.desk import Desk
from midwatch.live.event_logs import EventLogWriter
from midwatch.live.telemetry import ENDS, Telemetry, Workflows
from midwatch.live.trigger_events import TriggerEvents
from midwatch.loops.triggers import TriggerWatch
from midwatch.programs.git_branch import GitBranches
from midwatch.programs.task_end_program import make_runner


async def subscribe(desk: Desk, telemetry: Telemetry | None, leads: Callable[[], bool]) -> None:
    """Subscribe the program for ended tasks, the telemetry and the event logs to the events that they need."""
    if desk.settings.task_end_program:
        run = make_runner(desk.settings.task_end_program, desk.child_env)
        await desk.task_ends.add("task_end", run, leads)
    if telemetry is not None:
        workflows = Workflows(telemetry, desk.store)
        await desk.subscriptions.add("telemetry", workflows.record, ENDS, durable=True, leads=leads)
    for name, log in desk.settings.event_logs.items():
        write = EventLogWriter(log.options(name, desk.settings.home)).write
        await desk.subscriptions.add(f"event_log:{name}", write, durable=True, batches=True, seconds=inf, leads=leads)


def build_trigger_watch(desk: Desk, leads: Callable[[], bool], nap: float) -> TriggerWatch:
    """Return the watcher of files and branches, which also follows the events that triggers wait for."""
    events = TriggerEvents(desk.store, desk.subscriptions, desk.chains.find_kinds, desk.chains.take, leads)
    branches = GitBranches(home=str(desk.home.path), filters=desk.settings.git_filters)
    return TriggerWatch(desk.store, desk.clock, leads, desk.triggers, branches, events.follow, nap=nap)
