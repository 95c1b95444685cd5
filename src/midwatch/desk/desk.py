"""The desk: all services of one home, whether or not this process runs tasks."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from midwatch.base.errors import MidwatchError
from midwatch.desk.foundation import Foundation, Setup
from midwatch.live.subscriptions import Subscriptions
from midwatch.live.task_ends import TaskEnds
from midwatch.loops.routines import Routines
from midwatch.programs.git import GitProgram
from midwatch.services.accounts import Accounts
from midwatch.services.alerts import Alerts
from midwatch.services.automation_transfer import AutomationTransfer
from midwatch.services.automations import Automations
from midwatch.services.chains import Chains
from midwatch.services.declarations import Declarations
from midwatch.services.events import Events
from midwatch.services.goals import Goals
from midwatch.services.handoff_requests import HandoffRequests
from midwatch.services.handoffs import Handoffs
from midwatch.services.sessions import Sessions
from midwatch.services.system import System
from midwatch.services.task_endings import TaskEndings
from midwatch.services.tasks import Limits, Tasks
from midwatch.services.terminals import Terminals
from midwatch.services.tool_calls import ToolCalls
from midwatch.services.triggers import Triggers
from midwatch.services.worktrees import Worktrees


class Desk(Foundation):
    """All services of one home. They work whether or not this process runs tasks."""

    def __init__(self, setup: Setup, find_url: Callable[[], str | None] = lambda: None) -> None:
        super().__init__(setup, find_url)
        settings, home, store, clock = self.settings, self.home, self.store, self.clock
        check_route, plan, terms_of = self.notifications.check_route, self.notifications.plan, self.registry.terms_of
        self.endings = TaskEndings(
            store, clock, terms_of, settings.goals.templates(), plan, settings.goals.steps_per_minute
        )
        self.tasks = Tasks(
            store,
            clock,
            self.registry,
            check_route,
            Limits(max_open=settings.max_open, max_open_per_actor=settings.max_open_per_actor),
            submitter=self.id,
            waiter=self.waiter,
            default_route=settings.notify,
            endings=self.endings,
            authorization=self.authorization,
            plan=plan,
        )
        self.accounts = Accounts(store, self.authorization)
        self.events = Events(store, self.authorization)
        self.system = System(store, clock, self.tasks, self.approvals, home.path)
        self.worktrees = Worktrees(
            store, clock, GitProgram(home=str(home.path), filters=settings.git_filters), self.authorization,
            home=str(home.worktrees), host=socket.gethostname(), lock=home.lock,
        )  # fmt: skip
        self.automations = Automations(
            store,
            clock,
            self.tasks,
            terms_of,
            check_route,
            settings.notify,
            submitter=self.id,
            calendars=settings.list_calendars(),
            plan=plan,
        )
        self.triggers = Triggers(store, clock, self.find_public_url)
        self.chains = Chains(store, clock, self.triggers, plan)
        self.automation_transfer = AutomationTransfer(store, clock, self.tasks, check_route, settings.list_calendars())
        self.sessions = Sessions(store, clock, self.tasks, self._pause_automation)
        opened = self.conversations if setup.work else None
        self.terminals = Terminals(store, self.agents, opened, self.relay, self.child_env, self.authorization)
        self.goals = Goals(
            store, clock, self.tasks, terms_of, check_route, settings.notify, settings.goals.defaults(), plan
        )
        self.declarations = Declarations(store, clock, self.tasks, self.automations, self.goals)
        self.handoffs = self._build_handoffs()
        self.handoff_requests = HandoffRequests(store, self.tasks, self.handoffs)
        self.tool_calls = ToolCalls(self.running_tasks, self.rules.policies)
        self.routines = Routines(clock)
        self.subscriptions = Subscriptions(store, self.bus, clock)
        self.task_ends = TaskEnds(store, self.subscriptions)
        self.alerts = Alerts(
            store, clock, self.living, settings.silence_of, graces=settings.graces(),
            escalate_after=settings.escalate_after, route=settings.notify,
            worked=self.running_tasks.read_worked_seconds, plan=plan,
        )  # fmt: skip

    def _build_handoffs(self) -> Handoffs:
        """Build the handoff service, and disable handoffs to the agents whose setting `handoffs` is False."""
        settings = self.settings.handoffs
        handoffs = Handoffs(
            self.store, self.clock, self.registry, self.id, self.running_tasks, self.waiter, settings.limits(),
            timeout=settings.timeout, nest_history=settings.nest_history,
        )  # fmt: skip
        for name, agent in self.settings.agents.items():
            handoffs.enable(name, agent.handoffs is not False)
        return handoffs

    async def _pause_automation(self, automation_id: str, actor: str | None) -> None:
        why = f"{actor or 'a person'} interrupted its run"
        with suppress(MidwatchError):
            await self.automations.pause(automation_id, why=why, actor=actor)
