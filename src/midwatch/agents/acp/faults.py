"""Classifies an agent's error: limit of the provider, temporary failure, missing sign-in, or another failure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from midwatch.agents.base import last_lines
from midwatch.agents.streams.faults import judge, make_error
from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError

AUTH_REQUIRED = -32000
EMPTY_WORDS = frozenset({"", "error", "internal error", "server error"})
TELLING = frozenset({"message", "details", "detail", "error", "reason", "description", "data"})
HINTS = frozenset({"errorkind", "codexerrorinfo", "type", "status", "code", "kind"})
RESETS = frozenset({"resetsat", "resetat", "resettime", "resets"})
DEPTH = 5
LAST_LINES = 4
STACK = re.compile(r"\s*(\d+: |at \S|Location:|Backtrace|stack backtrace|~~|\^+$|Node\.js v)", re.IGNORECASE)


def convert_fault(agent: str, code: int, message: str, data: Any, now: int, *, sign_in: str) -> AgentError:
    """Convert an error that the agent sent to the error of the turn. `sign_in` tells people how to sign in."""
    text = find_text(message, data)
    hints = " ".join(str(value) for name, value in _walk(data) if _plain(name) in HINTS)
    status = code if 400 <= code < 600 else 401 if code == AUTH_REQUIRED else None
    judged = judge(f"{text} {hints}", now=now, status=status, resets_at=_find_reset(data))
    return make_error(replace(judged, text=text), agent, sign_in)


def find_text(message: str, data: Any) -> str:
    """Return the longest text in an error, shortened. Some agents put the reason only into `data`."""
    texts = [message.strip()] if message.strip().lower() not in EMPTY_WORDS else []
    texts += [value.strip() for name, value in _walk(data) if _plain(name) in TELLING and isinstance(value, str)]
    if not texts and isinstance(data, str):
        texts.append(data.strip())
    text = max(texts, key=len, default="") or message or "no reason was given"
    return " ".join(last_lines(text, lines=5, length=1000).split())


def last_words(printed: str) -> str:
    """Return the last lines that a program printed, joined to one line and without a stack trace."""
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not STACK.match(line)]
    return last_lines(" | ".join(lines[-LAST_LINES:]), length=1000)


def _find_reset(data: Any) -> int | None:
    """Return the time when the provider's usage limit ends, in microseconds; None if `data` does not contain it."""
    for name, value in _walk(data):
        if _plain(name) in RESETS and isinstance(value, int | float) and value > 1e9:
            return int(value / (1000 if value > 1e11 else 1) * SECOND)
    return None


def _walk(data: Any, depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield each name and value in nested data, also in texts that are JSON."""
    if isinstance(data, str) and data.lstrip().startswith("{"):
        try:
            data = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
    items: Any = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        yield str(name), value
        if depth:
            yield from _walk(value, depth - 1)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
