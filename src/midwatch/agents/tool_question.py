"""The question about a tool call: its words, its risk, and its files. Agents of several kinds ask it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from midwatch.domain.agent import Risk

LONGEST_COMMAND = 20_000
LONGEST_DIFF = 60_000
LONGEST_TEXT = 300
RISKS: Mapping[str, Risk] = {
    "read": "low", "search": "low", "think": "low", "fetch": "medium", "edit": "medium", "move": "medium",
    "execute": "medium", "delete": "high",
}  # fmt: skip
DANGEROUS = re.compile(
    r"\b(rm|rmdir|dd|mkfs\w*|shred|chown|chmod|sudo|su|doas|kill\w*|shutdown|reboot|eval)\b"
    r"|git\s+(push|reset|clean)|\|\s*(ba|z|da)?sh\b|>\s*/(?!dev/null)"
)
NO = re.compile(
    r"\W*(no\b|n\b|reject|deny|cancel|don.t|abort|skip|exit|quit|stop|never|suggest changes|continue without)", re.I
)
"""The beginning of a choice that means no."""
VERBS = {
    "execute": "Run", "edit": "Change", "delete": "Delete", "move": "Move", "read": "Read", "fetch": "Fetch",
    "search": "Search", "switch_mode": "Switch to",
}  # fmt: skip


def word_question(kind: str, subject: str) -> str:
    """Return a question such as `Run make test?`. It shows the first line of the subject."""
    first = subject.splitlines()[0][:LONGEST_TEXT] if subject.strip() else "it"
    return f"{VERBS.get(kind, 'Go on with')} {first}{'' if first == subject else ' …'}?"


def rate_risk(kind: str, command: str | None, paths: tuple[str, ...], root: str) -> Risk:
    """Return how dangerous the answer yes would be, as far as the agent's kind can tell."""
    outside = any(not is_inside(path, root) for path in paths)
    if kind not in ("read", "search") and outside:
        return "high"
    if command is not None and DANGEROUS.search(command):
        return "high"
    return "medium" if outside else RISKS.get(kind, "medium")


def make_absolute(path: str, root: str) -> str:
    """Return `path` as an absolute path. Links and `..` are not resolved, because rules check the path as it is."""
    return path if path.startswith(("/", "~")) else os.path.join(root, path.removeprefix("./"))  # noqa: PTH118 - pathlib would change it


def is_inside(path: str, root: str) -> bool:
    """Return whether the real path of `path` is the root or is below it."""
    real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118 - an absolute path must win
    return real == root or real.startswith(root.rstrip("/") + "/")
