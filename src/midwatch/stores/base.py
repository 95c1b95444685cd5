"""The store's methods, written once: each runs one verb in one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from midwatch.domain.alert import Told
from midwatch.domain.approval import Approval
from midwatch.domain.approval import Status as ApprovalStatus
from midwatch.domain.automation import Automation
from midwatch.domain.automation import Status as AutomationStatus
from midwatch.domain.changes import Changes, Fence
from midwatch.domain.channel import Delivery
from midwatch.domain.channel import Status as DeliveryStatus
from midwatch.domain.claiming import ClaimRequest
from midwatch.domain.event import EVERYTHING, Event, EventFilter, LogBounds, Page
from midwatch.domain.goal import Goal
from midwatch.domain.goal import Status as GoalStatus
from midwatch.domain.handoff import Handoff, HandoffFilter
from midwatch.domain.identity import Token
from midwatch.domain.instance import Instance
from midwatch.domain.rule import Rule
from midwatch.domain.session import Message, Session, View
from midwatch.domain.steering import Sent, Steer
from midwatch.domain.store import Commit
from midwatch.domain.task import Claims, Submitted, Summary, Task, TaskFilter
from midwatch.domain.turn_steps import Step
from midwatch.domain.usage import Asked, Spent
from midwatch.domain.watch_state import DeskState, SessionState, TaskState
from midwatch.domain.worktree import Worktree, WorktreeFilter
from midwatch.stores.verbs import (
    alert,
    automation,
    event,
    handoff,
    live,
    task,
    token,
    worktree,
)
from midwatch.stores.verbs import approval as approval_verbs
from midwatch.stores.verbs import changes as change_verbs
from midwatch.stores.verbs import delivery as delivery_verbs
from midwatch.stores.verbs import instance as instance_verbs
from midwatch.stores.verbs import rule as rule_verbs
from midwatch.stores.verbs import session as session_verbs
from midwatch.stores.verbs import steering as steering_verbs
from midwatch.stores.verbs import turn_steps as turn_step_verbs
from midwatch.stores.verbs import watch_state as watch_state_verbs

T = TypeVar("T")


class VerbStore(ABC):
    """Implements `midwatch.domain.store.Store` on top of two ways to run a verb."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[Commit], None]] = []

    @abstractmethod
    async def write(self, verb: Callable[..., T], *args: Any) -> T:
        """Run `verb(tx, *args)` and return once it is durable."""

    @abstractmethod
    async def read(self, verb: Callable[..., T], *args: Any) -> T:
        """Run `verb(tx, *args)`, which only looks, on everything committed so far."""

    async def moment(self, verb: Callable[..., T], *args: Any) -> T:
        """Like `read`; everything the verb looks at is of one moment."""
        return await self.read(verb, *args)

    async def peek(self, verb: Callable[..., T], *args: Any) -> T:
        """Like `read`, for a look at one record by its key, which a store may do without leaving the event loop."""
        return await self.read(verb, *args)

    def on_commit(self, listener: Callable[[Commit], None]) -> None:
        self._listeners.append(listener)

    async def submit(
        self, task_: Task, changes: Changes, max_open: int | None, max_of_actor: int | None = None
    ) -> Submitted:
        return await self.write(task.submit, task_, changes, max_open, max_of_actor)

    async def claim(self, request: ClaimRequest, now: int) -> Claims:
        return await self.write(task.claim, request, now)

    async def apply(self, changes: Changes) -> None:
        await self.write(change_verbs.apply, changes)

    async def record_late(self, late: Event) -> bool:
        return await self.write(task.record_late, late)

    async def get_task(self, task_id: str) -> Task | None:
        return await self.peek(task.get, task_id)

    async def list_tasks(self, which: TaskFilter) -> list[Task]:
        return await self.read(task.list_, which)

    async def count_tasks(self) -> Summary:
        return await self.read(task.count)

    async def kin(self, root_id: str) -> list[Task]:
        return await self.read(task.kin, root_id)

    async def failed_since(self, since: int, limit: int = 10) -> list[Task]:
        return await self.read(task.failed, since, limit)

    async def spent(self, asked: Asked) -> list[Spent]:
        return await self.read(task.spent, asked)

    async def running_tasks(self, owner: str | None = None) -> list[Task]:
        return await self.read(task.running, owner)

    async def gate_holder(self, gate: str) -> str | None:
        return await self.peek(task.gate_holder, gate)

    async def dir_holder(self, dir_key: str) -> str | None:
        return await self.peek(task.dir_holder, dir_key)

    async def open_events(self, fence: Fence) -> list[Event]:
        return await self.read(task.open_events, fence)

    async def steps_of(self, task_id: str) -> list[Step]:
        return await self.read(turn_step_verbs.of_task, task_id)

    async def steps_before(self, task_id: str) -> list[Step]:
        return await self.read(turn_step_verbs.before, task_id)

    async def thread_steps(self, thread_id: str, without: str) -> list[Step]:
        return await self.read(turn_step_verbs.of_thread, thread_id, without)

    async def queued_steers(self, task_id: str) -> list[Steer]:
        return await self.read(steering_verbs.queued, task_id)

    async def send_steer(
        self,
        wanted: Steer,
        otherwise: tuple[Task, Changes] | None,
        max_open: int | None = None,
        max_of_actor: int | None = None,
    ) -> Sent | None:
        return await self.write(steering_verbs.send, wanted, otherwise, max_open, max_of_actor)

    async def get_handoff(self, handoff_id: str) -> Handoff | None:
        return await self.peek(handoff.get, handoff_id)

    async def find_handoff(self, source_task: str | None, once: str) -> Handoff | None:
        return await self.peek(handoff.find, source_task, once)

    async def list_handoffs(self, which: HandoffFilter) -> list[Handoff]:
        return await self.read(handoff.list_, which)

    async def open_handoffs(self) -> dict[str, int]:
        return await self.read(handoff.open_)

    async def count_handoffs(self, root_id: str) -> int:
        return await self.read(handoff.count, root_id)

    async def due_handoffs(self, now: int, limit: int = 64) -> list[Handoff]:
        return await self.read(handoff.due, now, limit)

    async def next_handoff_at(self) -> int | None:
        return await self.read(handoff.next_at)

    async def left_handoffs(self, living: Sequence[str]) -> list[Handoff]:
        return await self.read(handoff.left, living)

    async def orphaned_handoffs(self) -> list[Handoff]:
        return await self.read(handoff.orphaned)

    async def prune_handoffs(self, before: int) -> int:
        return await self.write(handoff.prune, before)

    async def prune_tasks(self, before: int, keep: int) -> int:
        return await self.write(task.prune, before, keep)

    async def read_events(self, after: int, which: EventFilter = EVERYTHING, limit: int = 500) -> Page:
        return await self.read(event.read, after, which, limit)

    async def read_events_back(self, before: int, which: EventFilter = EVERYTHING, limit: int = 500) -> list[Event]:
        return await self.read(event.read_back, before, which, limit)

    async def log_bounds(self) -> LogBounds:
        return await self.read(event.bounds)

    async def get_cursor(self, name: str) -> int | None:
        return await self.peek(event.get_cursor, name)

    async def set_cursor(self, name: str, seq: int) -> None:
        await self.write(event.set_cursor, name, seq)

    async def prune_events(self, before: int, keep: int) -> int:
        return await self.write(event.prune, before, keep)

    async def get_session(self, key: str) -> Session | None:
        return await self.peek(session_verbs.session, key)

    async def view_session(self, key: str) -> View | None:
        return await self.read(session_verbs.view, key)

    async def list_sessions(self, limit: int = 50, before: str | None = None) -> list[View]:
        return await self.read(session_verbs.sessions, limit, before)

    async def open_session(self, session: Session, events: tuple[Event, ...]) -> bool:
        return await self.write(session_verbs.open_session, session, events)

    async def hold_session(self, key: str, owner: str, fence: Fence | None) -> int:
        return await self.write(live.hold, key, owner, fence)

    async def release_session(self, key: str, owner: str) -> None:
        await self.write(live.release, key, owner)

    async def restart_session(self, key: str) -> bool:
        return await self.write(live.restart, key)

    async def live_sessions(self, owner: str) -> dict[str, int]:
        return await self.read(live.sessions, owner)

    async def live_work(self, owner: str, now: int) -> bool:
        return await self.read(live.work, owner, now)

    async def close_session(self, key: str, now: int, events: tuple[Event, ...]) -> bool:
        return await self.write(session_verbs.close_session, key, now, events)

    async def state_of_task(self, task_id: str) -> TaskState | None:
        return await self.moment(watch_state_verbs.of_task, task_id)

    async def state_of_session(self, key: str) -> SessionState | None:
        return await self.moment(watch_state_verbs.of_session, key)

    async def state_of_desk(self) -> DeskState:
        return await self.moment(watch_state_verbs.of_desk)

    async def read_messages(self, key: str, after: int = 0, limit: int = 500) -> list[Message]:
        return await self.read(session_verbs.messages, key, after, limit)

    async def due_deliveries(self, now: int, limit: int = 50) -> list[Delivery]:
        return await self.read(delivery_verbs.due_deliveries, now, limit)

    async def next_delivery_at(self) -> int | None:
        return await self.read(delivery_verbs.next_delivery_at)

    async def get_delivery(self, delivery_id: str) -> Delivery | None:
        return await self.peek(delivery_verbs.delivery, delivery_id)

    async def list_deliveries(
        self, *, task_id: str | None = None, status: DeliveryStatus | None = None, limit: int = 50
    ) -> list[Delivery]:
        return await self.read(delivery_verbs.deliveries, task_id, status, limit)

    async def get_approval(self, approval_id: str) -> Approval | None:
        return await self.peek(approval_verbs.approval, approval_id)

    async def list_approvals(
        self, status: ApprovalStatus | None = None, limit: int = 50, task_id: str | None = None
    ) -> list[Approval]:
        return await self.read(approval_verbs.approvals, status, limit, task_id)

    async def pending_approvals(self, fence: Fence) -> list[Approval]:
        return await self.read(approval_verbs.pending_approvals, fence)

    async def overdue_approvals(self, now: int, limit: int = 100) -> list[Approval]:
        return await self.read(approval_verbs.overdue_approvals, now, limit)

    async def next_expiry(self) -> int | None:
        return await self.read(approval_verbs.next_expiry)

    async def get_rule(self, rule_id: str) -> Rule | None:
        return await self.peek(rule_verbs.rule, rule_id)

    async def list_rules(self, agent: str | None = None, *, revoked: bool = False, limit: int = 500) -> list[Rule]:
        return await self.read(rule_verbs.rules, agent, revoked, limit)

    async def token_of(self, hashed: str, now: int) -> Token | None:
        return await self.peek(token.by_hash, hashed, now)

    async def get_token(self, key: str) -> Token | None:
        return await self.read(token.get, key)

    async def list_tokens(self) -> list[Token]:
        return await self.read(token.list_)

    async def count_tokens(self, actor: str, now: int) -> int:
        return await self.read(token.count, actor, now)

    async def prune_tokens(self, before: int) -> int:
        return await self.write(token.prune, before)

    async def get_automation(self, automation_id: str) -> Automation | None:
        return await self.peek(automation.get, automation_id)

    async def list_automations(
        self, scope: tuple[str, str] | None = None, statuses: tuple[AutomationStatus, ...] = (), limit: int = 20
    ) -> list[Automation]:
        return await self.read(automation.list_, scope, statuses or ("active", "paused"), limit)

    async def due_automations(self, now: int, limit: int = 64) -> list[Automation]:
        return await self.read(automation.due, now, limit)

    async def next_automation_at(self) -> int | None:
        return await self.peek(automation.next_at)

    async def open_run(self, automation_id: str) -> Task | None:
        return await self._open_task("automation", automation_id)

    async def _open_task(self, cause: str, cause_id: str) -> Task | None:
        """One that was given to another agent is open until that has ended, or whoever got it then."""
        found = await self.peek(automation.open_task, cause, cause_id)
        following = None if found else await self.peek(automation.passed_to, cause, cause_id)
        while following is not None and (passed := await self.get_task(following)) is not None:
            found, following = passed if passed.open else None, passed.transferred_to
        return found

    async def runs(self, automation_id: str, limit: int = 20) -> list[Task]:
        return await self.read(automation.tasks_of, "automation", automation_id, limit)

    async def prune_automations(self, before: int) -> int:
        return await self.write(automation.prune, before)

    async def get_goal(self, goal_id: str) -> Goal | None:
        return await self.peek(automation.goal, goal_id)

    async def open_goal(self, scope: tuple[str, str]) -> Goal | None:
        return await self.peek(automation.open_goal, scope)

    async def list_goals(self, statuses: tuple[GoalStatus, ...] = (), limit: int = 20) -> list[Goal]:
        return await self.read(automation.goals, statuses, limit)

    async def due_goals(self, now: int, limit: int = 64) -> list[Goal]:
        return await self.read(automation.due_goals, now, limit)

    async def next_goal_at(self) -> int | None:
        return await self.read(automation.next_goal_at)

    async def open_step(self, goal_id: str) -> Task | None:
        return await self._open_task("goal", goal_id)

    async def steps(self, goal_id: str, limit: int = 20) -> list[Task]:
        return await self.read(automation.tasks_of, "goal", goal_id, limit)

    async def delete_goal(self, goal_id: str, revision: int, changes: Changes) -> bool:
        return await self.write(automation.delete_goal, goal_id, revision, changes)

    async def told_alerts(self, since: int) -> frozenset[str]:
        return await self.read(alert.told_since, since)

    async def tell_alerts(self, told: Iterable[Told], changes: Changes) -> None:
        await self.write(alert.tell, list(told), changes)

    async def get_worktree(self, worktree_id: str) -> Worktree | None:
        return await self.peek(worktree.get, worktree_id)

    async def list_worktrees(self, which: WorktreeFilter) -> list[Worktree]:
        return await self.read(worktree.list_, which)

    async def prune_worktrees(self, before: int) -> int:
        return await self.write(worktree.prune, before)

    async def add_instance(self, instance: Instance) -> None:
        await self.write(instance_verbs.add_instance, instance)

    async def remove_instances(self, ids: Iterable[str]) -> None:
        await self.write(instance_verbs.remove_instances, list(ids))

    async def list_instances(self) -> list[Instance]:
        return await self.read(instance_verbs.instances)
