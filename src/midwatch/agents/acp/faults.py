"""What an agent's error means: the provider's limit is used up, it passes, nobody is signed in, or it failed."""

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


def fault(agent: str, code: int, message: str, data: Any, now: int, *, sign_in: str) -> AgentError:
    """The error a turn ends with when the agent answered with one. `sign_in` says how to sign in."""
    said = told(message, data)
    hints = " ".join(str(value) for name, value in _walk(data) if _plain(name) in HINTS)
    status = code if 400 <= code < 600 else 401 if code == AUTH_REQUIRED else None
    found = judge(f"{said} {hints}", now=now, status=status, resets_at=_resets(data))
    return make_error(replace(found, text=said), agent, sign_in)


def told(message: str, data: Any) -> str:
    """The most telling text of an error, short; agents hide it behind "Internal error"."""
    found = [message.strip()] if message.strip().lower() not in EMPTY_WORDS else []
    found += [value.strip() for name, value in _walk(data) if _plain(name) in TELLING and isinstance(value, str)]
    if not found and isinstance(data, str):
        found.append(data.strip())
    text = max(found, key=len, default="") or message or "it did not say why"
    return " ".join(last_lines(text, lines=5, length=1000).split())


def last_words(printed: str) -> str:
    """What a program said before it ended, in one line and without its stack."""
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not STACK.match(line)]
    return last_lines(" | ".join(lines[-LAST_LINES:]), length=1000)


def _resets(data: Any) -> int | None:
    """When the error's data say that the limit is reset, in microseconds."""
    for name, value in _walk(data):
        if _plain(name) in RESETS and isinstance(value, int | float) and value > 1e9:
            return int(value / (1000 if value > 1e11 else 1) * SECOND)
    return None


def _walk(data: Any, depth: int = DEPTH) -> Iterator[tuple[str, Any]]:
    """Every name and value, also of JSON that was put into a text."""
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
