"""Turn what was typed into what the interface takes: prompts, budgets, directories, JSON."""

from __future__ import annotations

import json
import os.path
import sys
from typing import Any, TypeVar

from midwatch.base.errors import InvalidInput

Text = TypeVar("Text", str, str | None)


def read_prompt(prompt: Text) -> Text:
    """Return the prompt, from standard input for `-`. Bytes that are not text are replaced."""
    if prompt is None:
        return prompt
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if prompt == "-" else prompt
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def absolute_path(directory: str) -> str:
    """Return a directory as a server understands it."""
    return os.path.abspath(os.path.expanduser(directory))  # noqa: PTH100,PTH111 - symlinks stay


def parse_budget(budget: str | None) -> dict[str, object] | None:
    """Return a budget as the interface takes it."""
    from midwatch.domain.budget import Budget

    return None if budget is None else Budget.parse(budget).data()


def parse_policy(text: str) -> dict[str, Any]:
    """Return what an automation may do without asking, written as JSON."""
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError):
        policy = None
    if not isinstance(policy, dict):
        raise InvalidInput('approvals are JSON, such as {"allow": [{"command": "git log *"}]}.', field="approvals")
    return policy


def default_workdir(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request that names the current directory, unless it names a directory or a session, which has one."""
    if request.get("workdir") or request.get("session_key"):
        return request
    return {**request, "workdir": absolute_path(".")}
