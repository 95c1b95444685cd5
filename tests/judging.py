"""Questions about tools, and the effect of rules on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from midwatch.domain.agent import Question
from midwatch.domain.rule import Level, Policy
from midwatch.domain.tool_call import ToolCall, collect_texts
from midwatch.services.rule_decision import decide

FREE: dict[str, Any] = {"default": "allow", "allow": [{"kind": "execute"}, {"kind": "other"}]}
"""Rules that allow as much as possible."""


def judge(question: Question, root: Path | str | None = None, agent: str = "claude", **data: Any) -> str | None:
    """Return the effect of these rules."""
    levels = [Level("agent", Policy.from_data(data))]
    return decide(question, None if root is None else str(root), levels, agent).effect


def run(command: str | None, **fields: Any) -> Question:
    """Return a question about a command."""
    return Question(text="May I?", kind="execute", command=command, **fields)


def ask_about(arguments: Any) -> Question:
    """Return a question about a tool that midwatch does not know."""
    return Question.about(ToolCall("write", server="fs", **collect_texts(arguments)))
