"""Convert arguments into values of requests: prompts, budgets, directories, JSON."""

from __future__ import annotations

import json
import os.path
import sys
from typing import Any, TypeVar

from midwatch.base.errors import InvalidInput

Text = TypeVar("Text", str, str | None)


def read_prompt(prompt: Text) -> Text:
    """Return the prompt; `-` reads standard input. Invalid UTF-8 is replaced."""
    if prompt is None:
        return prompt
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if prompt == "-" else prompt
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def absolute_path(directory: str) -> str:
    """Return the absolute path of a directory, because a server has another current directory."""
    return os.path.abspath(os.path.expanduser(directory))  # noqa: PTH100,PTH111 - keeps symlinks


def parse_budget(budget: str | None) -> dict[str, object] | None:
    """Return a budget as a value of a request."""
    from midwatch.domain.budget import Budget

    return None if budget is None else Budget.parse(budget).data()


def parse_policy(text: str) -> dict[str, Any]:
    """Return the approval rules of an automation, parsed from JSON."""
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError):
        policy = None
    if not isinstance(policy, dict):
        raise InvalidInput('approvals must be JSON, such as {"allow": [{"command": "git log *"}]}.', field="approvals")
    return policy


def default_workdir(request: dict[str, Any]) -> dict[str, Any]:
    """Add the current directory to a request, unless it has a directory or a session, which has its own."""
    if request.get("workdir") or request.get("session_key"):
        return request
    return {**request, "workdir": absolute_path(".")}
