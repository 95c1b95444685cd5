"""midwatch: mission control for AI agents.

Give any agent work in the background, watch every step, answer its questions, get the result where you asked for it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from midwatch.agent import Agent, AgentCapability, Answer, Conversation, Turn, TurnResult, Usage
    from midwatch.approval import Approval
    from midwatch.channel import Channel, Delivery
    from midwatch.client import Client
    from midwatch.config import Settings
    from midwatch.errors import AgentError, Conflict, InvalidInput, MidwatchError, NotFound, TransientError
    from midwatch.event import Event, EventFilter
    from midwatch.runtime import Runtime
    from midwatch.session import Message, Session
    from midwatch.task import Summary, Task, TaskFilter

__version__ = version("midwatch")

_HOMES = {
    "Agent": "agent", "AgentCapability": "agent", "Answer": "agent", "Conversation": "agent", "Turn": "agent",
    "TurnResult": "agent", "Usage": "agent", "Approval": "approval", "Channel": "channel", "Delivery": "channel",
    "Client": "client", "Settings": "config", "AgentError": "errors", "Conflict": "errors", "InvalidInput": "errors",
    "MidwatchError": "errors", "NotFound": "errors", "TransientError": "errors", "Event": "event",
    "EventFilter": "event", "Runtime": "runtime", "Message": "session", "Session": "session", "Summary": "task",
    "Task": "task", "TaskFilter": "task",
}  # fmt: skip
"""Where each public name lives. They are loaded when first used, so that the command line starts fast."""

__all__ = [
    "Agent",
    "AgentCapability",
    "AgentError",
    "Answer",
    "Approval",
    "Channel",
    "Client",
    "Conflict",
    "Conversation",
    "Delivery",
    "Event",
    "EventFilter",
    "InvalidInput",
    "Message",
    "MidwatchError",
    "NotFound",
    "Runtime",
    "Session",
    "Settings",
    "Summary",
    "Task",
    "TaskFilter",
    "TransientError",
    "Turn",
    "TurnResult",
    "Usage",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"midwatch.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'midwatch' has no attribute {name!r}")
