"""Store: one port that combines the ports of all nouns, and the reports about commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from midwatch.domain.account import AccountStore
from midwatch.domain.alert import AlertStore
from midwatch.domain.approval import ApprovalStore
from midwatch.domain.automation import AutomationStore
from midwatch.domain.channel import DeliveryStore
from midwatch.domain.context_item import ContextItemStore
from midwatch.domain.event import Event, EventLog
from midwatch.domain.goal import GoalStore
from midwatch.domain.handoff import HandoffStore
from midwatch.domain.identity import TokenStore
from midwatch.domain.instance import InstanceStore, LiveStore
from midwatch.domain.rule import RuleStore
from midwatch.domain.session import SessionStore
from midwatch.domain.steering import SteerStore
from midwatch.domain.task_store import TaskStore
from midwatch.domain.trigger import TriggerStore
from midwatch.domain.turn_steps import StepStore
from midwatch.domain.usage import UsageStore
from midwatch.domain.watch_state import StateStore
from midwatch.domain.worktree import WorktreeStore

STEP_SECONDS = 0.003
"""Seconds for which one step of pruning may use the writer of a store. The commit comes on top."""


class Commit(NamedTuple):
    """The report about a commit: the topics that it may have changed, and the events that it appended.

    The topics are some of `EVERY_TOPIC`. A commit of another process is reported with every topic and no events: read
    its events from the log.
    """

    topics: frozenset[str]
    events: tuple[Event, ...]
    foreign: bool = False


EVERY_TOPIC = frozenset({
    "task", "stop", "delivery", "approval", "automation", "goal", "session", "steer", "handoff", "context_item",
    "trigger", "firing",
})  # fmt: skip


class Store(
    TaskStore,
    SessionStore,
    DeliveryStore,
    ApprovalStore,
    RuleStore,
    TokenStore,
    InstanceStore,
    LiveStore,
    EventLog,
    StateStore,
    UsageStore,
    AutomationStore,
    GoalStore,
    TriggerStore,
    AlertStore,
    WorktreeStore,
    StepStore,
    SteerStore,
    ContextItemStore,
    HandoffStore,
    AccountStore,
    Protocol,
):
    """Port: durable state.

    The kinds of stores are in `midwatch.stores`; the same contract tests check all of them.
    """

    async def close(self) -> None:
        """Wait for the end of running calls, and close the database."""

    def on_commit(self, listener: Callable[[Commit], None]) -> None:
        """Call `listener` on the event loop after each commit.

        Two commits at about the same time may be reported in any order; the seqs of their events show the real order.
        """

    def on_submit(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the event loop when a task is about to be stored, if a claim can join its transaction.

        The transaction of a store that writes one change after the other can store the task and claim it.
        """

    async def check_writable(self) -> None:
        """If a write has failed because of the database, try to write again; raise StoreUnavailable if this fails."""

    async def shrink(self) -> bool:
        """Return unused space to the file system for a few milliseconds. Return whether there may be more to return.

        A database that does this by itself returns False.
        """

    async def describe(self) -> dict[str, object]:
        """Return facts for `midwatch doctor`: kind, place, schema, durability, size."""

    async def check(self) -> list[str]:
        """Return the problems that the integrity check of the database has found; an empty list means none."""
