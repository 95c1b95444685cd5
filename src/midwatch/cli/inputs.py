"""Convert arguments of commands into values of requests: prompts, budgets, directories, JSON."""

from __future__ import annotations

import json
import os.path
import sys
from pathlib import Path
from typing import Any, TypeVar

from midwatch.base.errors import InvalidInput

Text = TypeVar("Text", str, str | None)


def read_prompt(prompt: Text) -> Text:
    """Return the prompt. If it is `-`, read standard input instead, and replace invalid UTF-8."""
    if prompt is None:
        return prompt
    text = sys.stdin.buffer.read().decode("utf-8", "replace") if prompt == "-" else prompt
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def absolute_path(directory: str) -> str:
    """Return the absolute path of a directory. A relative path would be wrong for a server, which runs elsewhere."""
    return os.path.abspath(os.path.expanduser(directory))  # noqa: PTH100,PTH111 - keeps symlinks


def parse_budget(budget: str | None) -> dict[str, object] | None:
    """Convert the text of --budget to the budget of a request."""
    from midwatch.domain.budget import Budget

    return None if budget is None else Budget.parse(budget).data()


def parse_env(assignments: list[str]) -> dict[str, str]:
    """Convert the texts NAME=VALUE of --env to variables by name."""
    parts = [assignment.partition("=") for assignment in assignments]
    if not all(name and equals for name, equals, _ in parts):
        raise InvalidInput("write a variable as NAME=VALUE; NAME= removes it.", field="env")
    return {name: value for name, _, value in parts}


def read_file(file: str, field: str = "file") -> bytes:
    """Return the content of a file, or of standard input if its name is `-`."""
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as problem:
        raise InvalidInput(f"{file} cannot be read: {problem.strerror}; check the path.", field=field) from None


def parse_policy(text: str) -> dict[str, Any]:
    """Parse the JSON of --approvals: rules on the use of tools."""
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError):
        policy = None
    if not isinstance(policy, dict):
        raise InvalidInput('approvals must be JSON, such as {"allow": [{"command": "git log *"}]}.', field="approvals")
    return policy


def default_workdir(request: dict[str, Any]) -> dict[str, Any]:
    """Add the current directory to a request, unless the request names a directory or a session."""
    if request.get("workdir") or request.get("session_key"):
        return request
    return {**request, "workdir": absolute_path(".")}
