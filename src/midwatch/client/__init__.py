"""A typed client of the HTTP interface. It raises the errors of the server as classes of `midwatch.base.errors`.

Imports `wire`, `domain` and `base`, and orjson.
Not here: anything that needs the server's process.
"""

from __future__ import annotations

from midwatch.client.approvals import ApprovalCalls
from midwatch.client.automations import AutomationCalls
from midwatch.client.budgets import BudgetCalls
from midwatch.client.declarations import DeclarationCalls
from midwatch.client.goals import GoalCalls
from midwatch.client.handoffs import HandoffCalls
from midwatch.client.hooks import HookCalls
from midwatch.client.sessions import SessionCalls
from midwatch.client.streams import EventCalls, Which
from midwatch.client.system import DeskCalls
from midwatch.client.tasks import TaskCalls
from midwatch.client.terminals import TerminalCalls
from midwatch.client.transport import BY_CODE, quote_key
from midwatch.client.worktrees import WorktreeCalls

__all__ = ("BY_CODE", "Client", "Which", "quote_key")


class Client(
    TaskCalls,
    SessionCalls,
    TerminalCalls,
    WorktreeCalls,
    EventCalls,
    ApprovalCalls,
    AutomationCalls,
    GoalCalls,
    BudgetCalls,
    DeclarationCalls,
    HandoffCalls,
    HookCalls,
    DeskCalls,
):
    """A client of one server. Use it as an async context manager, or `close` it."""
