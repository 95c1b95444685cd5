"""Flags of triggers that watch something: --on-file, --git, --on-event, --after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import click

from midwatch.cli.parameters import Option

OnFile = Annotated[
    list[str] | None,
    Option("--on-file", metavar="PATH", help="Start when this file, directory or pattern changes. Repeatable."),
]
Git = Annotated[
    list[str] | None, Option("--git", metavar="REPO[@BRANCH]", help="Start on a new commit of a branch. Repeatable.")
]
OnEvent = Annotated[
    list[str] | None, Option("--on-event", metavar="KIND", help="Start on events such as goal_*. Repeatable.")
]
After = Annotated[
    list[str] | None,
    Option("--after", metavar="NAME", help="Start after this automation, an id, name or title. Repeatable: after all."),
]
AfterAny = Annotated[bool, Option("--after-any", help="Start after any of the automations of --after.")]
Outcome = Annotated[
    list[str] | None,
    Option("--outcome", metavar="OUTCOME", help="For --after: ok, failed, cancelled, skipped or any. Repeatable."),
]


def read_watches(
    on_file: Sequence[str] | None,
    git: Sequence[str] | None,
    on_event: Sequence[str] | None,
    after: Sequence[str] | None,
    after_any: bool,
    outcome: Sequence[str] | None,
) -> list[dict[str, Any]]:
    """Return the definitions of triggers that the flags describe. Relative paths begin in the current directory."""
    if (after_any or outcome) and not after:
        raise click.BadParameter("--after-any and --outcome need --after; add it")
    found: list[dict[str, Any]] = []
    if on_file:
        found.append({"kind": "file", "paths": [_make_absolute(path) for path in on_file]})
    found += [{"kind": "git", **_read_repository(text)} for text in git or ()]
    if on_event:
        found.append({"kind": "event", "kinds": list(on_event)})
    if after:
        more = {"join": "any"} if after_any else {}
        found.append(
            {"kind": "after", "automations": list(after), **more, **({"outcomes": list(outcome)} if outcome else {})}
        )
    return found


def _read_repository(text: str) -> dict[str, str]:
    path, mark, branch = text.rpartition("@")
    if not mark or not branch or Path(text).expanduser().exists():
        return {"repository": _make_absolute(text)}
    return {"repository": _make_absolute(path), "branch": branch}


def _make_absolute(path: str) -> str:
    """Return the path from the root. A pattern stays a pattern, so no link in it is followed."""
    return str(Path.cwd() / Path(path).expanduser())
