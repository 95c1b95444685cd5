"""Classifies an agent's error by its HTTP status or its text, and makes the error of the turn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo

from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, TransientError, UsageLimit

FaultKind = Literal["limit", "auth", "passing", "thread", "options", "other"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One classified error. `resets_at` is the time when a usage limit ends, in microseconds, if it is known."""

    kind: FaultKind
    text: str
    resets_at: int | None = None


class NotSignedIn(AgentError):
    """Raised when the provider refuses the API key of the agent, or the agent is not signed in."""


PATTERNS: Mapping[FaultKind, tuple[str, ...]] = {
    "thread": (
        "no conversation found", "no rollout found", "no saved session", "session not found",
        "invalid session identifier", "no session found", "no such session", "no session, task, or name matched",
        "no previous sessions found",
    ),
    "options": (
        "unknown (option|argument)", "unexpected argument", "unrecognized (option|argument)",
        r"invalid value .* for '--", r"^opencode run \[message",
    ),
    "limit": (
        r"(usage|rate|session|weekly|daily|hour|opus|spending) limit", "limit (reached|exceeded)", "rate_limit",
        r"hit your [\w -]*limit", "quota", "too many requests", "resource.?exhausted", r"\b429\b",
    ),
    "auth": (
        r"\b401\b", "unauthori[sz]ed", "invalid (x-)?api[ _-]?key", "incorrect api key", "api_key_invalid",
        "authenticat", "not (logged|signed) in", r"/login\b", "log ?in (again|required)",
        "missing (api key|environment variable)", r"must specify the \w*key", "no credentials", "token (has )?expired",
        "unknown provider", "no provider configured", "provider not set",
    ),
    "passing": (
        r"\b(500|502|503|504|529)\b", "overloaded", "high demand", "server error", "temporar", "unavailable", "econn",
        "enotfound", "etimedout", "eai_again", "connection (error|refused|reset|closed)", "network", "timed out",
        "timeout", "fetch failed", "stream disconnected", "error sending request", "socket hang up",
    ),
}  # fmt: skip
"""Patterns of each kind of error. They are searched in this order in error messages; the first match counts."""
WORDS = {kind: re.compile("|".join(patterns), re.I) for kind, patterns in PATTERNS.items()}


def judge(text: str, *, now: int, status: int | None = None, resets_at: int | None = None) -> Fault:
    """Classify an error and return the fault. `status` is the HTTP status of the provider, if it is known."""
    kind = _judge_status(status) or _judge_words(text)
    if kind != "limit":
        return Fault(kind, text)
    return Fault(kind, text, resets_at if resets_at is not None else find_reset_time(text, now))


def _judge_status(status: int | None) -> FaultKind | None:
    if status == 429:
        return "limit"
    if status in (401, 403):
        return "auth"
    return "passing" if status is not None and status >= 500 else None


def _judge_words(text: str) -> FaultKind:
    return next((kind for kind, words in WORDS.items() if words.search(text)), "other")


def make_error(fault: Fault, agent: str, sign_in: str) -> AgentError:
    """Convert a fault to the error of the turn. `sign_in` tells people how to sign in."""
    match fault.kind:
        case "limit":
            return UsageLimit(f"{agent}: {fault.text}", resets_at=fault.resets_at)
        case "passing":
            return TransientError(f"{agent}: {fault.text}")
        case "auth":
            return NotSignedIn(f"{agent} is not signed in or its key was refused ({fault.text}); {sign_in}.")
    return AgentError(f"{agent} failed: {fault.text}")


LONGEST_SPAN = 10 * 365 * 86400.0
UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
EPOCH = re.compile(r"\|(\d{10})\b")
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])[a-z]*[\s,]*(?:and )?", re.I)
SPAN = re.compile(rf"(?:\bin|retryDelay\W+|\bafter)\s*(?:about )?((?:{AMOUNT.pattern})+)", re.I)
ISO = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)")
CLOCK = re.compile(
    r"(?:resets?|again|until|available)\s+(?:at\s+|on\s+)?"
    r"(?:(?P<month>[A-Z][a-z]{2})[a-z]*\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,?(?: (?P<year>\d{4}),?)?(?: at)? )?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?\s*(?P<half>[ap]m)\b(?:\s*\((?P<zone>[\w/+-]+)\))?",
    re.I,
)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
CLOCK_ROUNDING = timedelta(minutes=1)  # a time without seconds may be any moment of that minute
JUST_PAST = timedelta(minutes=10)


def find_reset_time(text: str, now: int) -> int | None:
    """Return the time when a usage limit ends, in microseconds; None if the text does not contain it."""
    if match := EPOCH.search(text):
        return int(match[1]) * SECOND
    if match := ISO.search(text):
        return _iso_time(match[0])
    if match := CLOCK.search(text):
        return _clock_time(match, datetime.fromtimestamp(now / SECOND, UTC))
    if match := SPAN.search(text):
        length = sum(float(number) * UNITS[unit.lower()] for number, unit in AMOUNT.findall(match[1]))
        return now + int(min(length, LONGEST_SPAN) * SECOND)
    return None


def _iso_time(text: str) -> int | None:
    try:
        return _microseconds(datetime.fromisoformat(text.replace("Z", "+00:00")))
    except (ValueError, OverflowError):  # such as the 99th month
        return None


def _clock_time(match: re.Match[str], now: datetime) -> int | None:
    here = now.astimezone(_zone(match["zone"]))
    if not 1 <= int(match["hour"]) <= 12:
        return None
    hour = int(match["hour"]) % 12 + (12 if match["half"].lower() == "pm" else 0)
    try:
        when = here.replace(hour=hour, minute=int(match["minute"] or 0), second=0, microsecond=0)
        if match["month"]:
            month = MONTHS.index(match["month"].lower()) + 1
            when = when.replace(year=int(match["year"] or here.year), month=month, day=int(match["day"]))
            if not match["year"] and when < here - timedelta(days=180):
                when = when.replace(year=when.year + 1)
        elif when < here - JUST_PAST:
            when += timedelta(days=1)
        return _microseconds(max(when, here) + CLOCK_ROUNDING)
    except (ValueError, OverflowError):
        return None


def _zone(name: str | None) -> tzinfo | None:
    """Return the time zone with this name, or UTC if the name is unknown.

    Without a name, return None, which means the time zone of this machine.
    """
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC


def _microseconds(when: datetime) -> int:
    return int(when.timestamp()) * SECOND
