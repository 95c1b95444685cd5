"""Builds the watcher of triggers of a desk."""

from __future__ import annotations

from collections.abc import Callable

from midwatch.desk.desk import Desk
from midwatch.live.trigger_events import TriggerEvents
from midwatch.loops.triggers import TriggerWatch
from midwatch.programs.git_branch import GitBranches


def build_trigger_watch(desk: Desk, leads: Callable[[], bool], nap: float) -> TriggerWatch:
    """Return the watcher of files and branches, which also follows the events that triggers wait for."""
    events = TriggerEvents(desk.store, desk.subscriptions, desk.chains.find_kinds, desk.chains.take, leads)
    branches = GitBranches(home=str(desk.home.path), filters=desk.settings.git_filters)
    return TriggerWatch(desk.store, desk.clock, leads, desk.triggers, branches, events.follow, nap=nap)
