"""midwatch: mission control for AI agents.

Run any agent in the background, watch every step, answer its questions, and get the result where you want it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from midwatch.base.version import __version__

if TYPE_CHECKING:
    from midwatch.agents.function import FunctionAgent
    from midwatch.agents.handoff_agent import HandoffAgent
    from midwatch.agents.llm.kind import LlmAgent
    from midwatch.agents.llm.tools import tool
    from midwatch.base.errors import AgentError, Conflict, InvalidInput, MidwatchError, NotFound, TransientError
    from midwatch.client import Client
    from midwatch.desk.config import Settings
    from midwatch.domain import handoff_history as handoff_filters
    from midwatch.domain.agent import (
        Agent,
        AgentCapability,
        AgentTerms,
        Answer,
        Choice,
        Conversation,
        Question,
        Turn,
        TurnResult,
        Usage,
    )
    from midwatch.domain.approval import Approval
    from midwatch.domain.channel import Channel, Delivery
    from midwatch.domain.event import (
        AgentFault,
        Event,
        EventFilter,
        LoopError,
        MessageDelta,
        MessageUpdate,
        ScreenUpdate,
        TaskProgress,
        ToolExecEnd,
        ToolExecStart,
    )
    from midwatch.domain.handoff import HandoffTask
    from midwatch.domain.handoff_history import HandoffContext, HandoffInputData
    from midwatch.domain.hook import Hook, HookDecision, HookMeta
    from midwatch.domain.session import Message, Session, gate_key
    from midwatch.domain.task import Task
    from midwatch.domain.task_store import Summary, TaskFilter
    from midwatch.runtime.runtime import Runtime
    from midwatch.services.handoffs import HandoffOptions

_ROOMS = {
    "agents.function": "FunctionAgent",
    "agents.handoff_agent": "HandoffAgent",
    "agents.llm.kind": "LlmAgent",
    "agents.llm.tools": "tool",
    "base.errors": "AgentError Conflict InvalidInput MidwatchError NotFound TransientError",
    "client": "Client",
    "desk.config": "Settings",
    "domain.agent": "Agent AgentCapability AgentTerms Answer Choice Conversation Question Turn TurnResult Usage",
    "domain.approval": "Approval",
    "domain.channel": "Channel Delivery",
    "domain.event": "AgentFault Event EventFilter LoopError MessageDelta MessageUpdate ScreenUpdate TaskProgress "
    "ToolExecEnd ToolExecStart",
    "domain.handoff": "HandoffTask",
    "domain.handoff_history": "HandoffContext HandoffInputData",
    "domain.hook": "Hook HookDecision HookMeta",
    "domain.session": "Message Session gate_key",
    "domain.task": "Task",
    "domain.task_store": "Summary TaskFilter",
    "runtime.runtime": "Runtime",
    "services.handoffs": "HandoffOptions",
}
_HOMES = {name: module for module, names in _ROOMS.items() for name in names.split()}
"""The module of each public name. A module is loaded at its first use, so that the command line starts fast."""

__all__ = [
    "Agent",
    "AgentCapability",
    "AgentError",
    "AgentFault",
    "AgentTerms",
    "Answer",
    "Approval",
    "Channel",
    "Choice",
    "Client",
    "Conflict",
    "Conversation",
    "Delivery",
    "Event",
    "EventFilter",
    "FunctionAgent",
    "HandoffAgent",
    "HandoffContext",
    "HandoffInputData",
    "HandoffOptions",
    "HandoffTask",
    "Hook",
    "HookDecision",
    "HookMeta",
    "InvalidInput",
    "LlmAgent",
    "LoopError",
    "Message",
    "MessageDelta",
    "MessageUpdate",
    "MidwatchError",
    "NotFound",
    "Question",
    "Runtime",
    "ScreenUpdate",
    "Session",
    "Settings",
    "Summary",
    "Task",
    "TaskFilter",
    "TaskProgress",
    "ToolExecEnd",
    "ToolExecStart",
    "TransientError",
    "Turn",
    "TurnResult",
    "Usage",
    "__version__",
    "gate_key",
    "handoff_filters",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name == "handoff_filters":
        return import_module("midwatch.domain.handoff_history")
    if name in _HOMES:
        return getattr(import_module(f"midwatch.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'midwatch' has no attribute {name!r}")
