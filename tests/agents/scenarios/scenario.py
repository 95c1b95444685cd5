"""A scenario: how a real agent is brought to show one dialog, or one screen that tells of a failure.

`tests/record-terminal --dialogs AGENT` plays the scenarios of an agent and records each until its screen stands still.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One dialog of one agent."""

    kind: str
    """The kind of the dialog, which is also the name of the recording."""
    shows: str
    """A regular expression that the last screen must match."""
    folder: str = "dialogs"
    """Where the recording is: `dialogs`, or `failures` for screens that tell of a failure and ask nothing."""
    script: str = ""
    """The script of the fake model, see tests/fakes/script.py; `{work}` is the project. If empty, nothing is sent."""
    steps: tuple[tuple[str, str], ...] = ()
    """Before the prompt: wait until the screen matches the first, then type the second."""
    after: tuple[tuple[str, str], ...] = ()
    """The same after the prompt."""
    args: tuple[str, ...] = ()
    """More arguments of the program."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Changes of the environment: `{url}` is the address of the fake model, and None removes a variable."""
    key: str = "fake-key"
    """The key of the model. The fake model refuses a key that begins with `bad`."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files in the project, by their path."""
    prepare: Callable[[Path, Path, str], None] | None = None
    """Changes the HOME or the project. It gets both, and the address of the fake model."""
    seconds: float = 45.0
    """How long it may take until the screen matches."""


def change_json(path: Path, **changes: Any) -> None:
    """Change a JSON file: merge the changes into it; None removes an entry."""
    content = json.loads(path.read_text()) if path.exists() else {}
    _merge(content, changes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _merge(content: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if value is None:
            content.pop(name, None)
        elif isinstance(value, Mapping) and isinstance(content.get(name), dict):
            _merge(content[name], value)
        else:
            content[name] = value
