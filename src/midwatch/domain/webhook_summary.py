"""Summaries of payloads: one line such as "push to main by octocat (3 commits)", from fields that senders agree on.

All values come from strangers, so that they are shortened and made printable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midwatch.base.text import cut, escape_controls
from midwatch.domain.payload_filter import MISSING, find_value

LONGEST_VALUE = 80
BRANCH, TAG = "refs/heads/", "refs/tags/"


def summarise(payload: Any, headers: Mapping[str, str]) -> str:
    """Return a payload in a few words. Names of headers are in lower case."""
    event = headers.get("x-github-event") or _find(payload, "object_kind", "type", "event", "event_type", "action")
    event = "issue" if event == "issues" else event.replace("_", " ")
    subject = _find(payload, "object_attributes.iid", "issue.number", "pull_request.number", "number")
    action = _find(payload, "action", "object_attributes.action")
    ref, count = _find(payload, "ref"), _count_commits(payload)
    if ref and (event in ("push", "tag push") or (not event and count is not None)):
        words = f"push to {_short_ref(ref)}"
    else:
        words = " ".join(filter(None, (event or "delivery", action if action != event else "")))
        words += f" #{subject}" if subject else ""
    who = _find(payload, "sender.login", "user_username", "user.username", "pusher.name", "user.login")
    words += f" by {who}" if who else ""
    return words if count is None else f"{words} ({count} {'commit' if count == 1 else 'commits'})"


def _find(payload: Any, *paths: str) -> str:
    """Return the first text or number at one of these paths as one short line, or an empty text."""
    for path in paths:
        value = find_value(payload, path)
        if value is not MISSING and isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            text = str(value)[: 4 * LONGEST_VALUE] if isinstance(value, str) else str(value)
            return cut(escape_controls(" ".join(text.split())).replace("`", "'"), LONGEST_VALUE)
    return ""


def _short_ref(ref: str) -> str:
    return f"tag {ref.removeprefix(TAG)}" if ref.startswith(TAG) else ref.removeprefix(BRANCH)


def _count_commits(payload: Any) -> int | None:
    total, commits = find_value(payload, "total_commits_count"), find_value(payload, "commits")
    if isinstance(total, int) and not isinstance(total, bool):
        return total
    return len(commits) if isinstance(commits, list) else None
