"""Decides what texts on the screen mean: a usage limit, a missing sign-in, an error, or that a person said no.

Each profile has a table of such texts. A text counts only in its place, so a reply may contain the same words. The best
evidence is what the program itself reports (OSC 7501): if it reports that it is done, the turn has not failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from midwatch.agents.known import KNOWN, UNKNOWN
from midwatch.agents.streams.faults import Fault, judge, make_error
from midwatch.agents.terminal.profile import Meaning, Place, Profile
from midwatch.agents.terminal.status import Report
from midwatch.base.clock import SECOND
from midwatch.base.errors import AgentError, UsageLimit
from midwatch.base.text import cut
from midwatch.domain.agent import Answer, Question

LIMIT_PATIENCE = 120.0  # seconds that a program may wait for the end of a usage limit by itself
MOST_LINES = 100  # lines at the end of a reply in which the message of a failure is searched
SHOWN = 500  # characters of a text that an error message contains
FRAMES = "│┃║|╭╮╰╯┌┐└┘─━═╌▄▀"
SIGNS = "■⬝✕✗⎿●⏺•⚠▸✻✽✶✢·*✳ \xa0"
STATUS = re.compile(r"(?:API Error:|status|\"code\":|error:|✗|^) ?(\d{3})\b", re.I)
UNKNOWN_FAILURE = Meaning(what="error")


class Found(NamedTuple):
    """A text on the screen and its meaning."""

    row: Meaning
    text: str


def find_on_screen(profile: Profile, shown: str) -> Found | None:
    """Return the first text with the place `screen`. It is below the last input box, or there is no input box."""
    places = [match.end() for match in re.finditer(profile.box, shown, re.MULTILINE)] if profile.box else []
    return _search(profile, "screen", shown[places[-1] :] if places else shown)


def find_at_exit(profile: Profile, shown: str) -> Found | None:
    """Return the first text on the last screen of a program that has ended."""
    return _search(profile, "exit", shown)


def find_retry(profile: Profile, shown: str) -> Found | None:
    """Return the first text by which a busy program tells that it waits or tries again."""
    return _search(profile, "busy", shown)


def find_in_reply(profile: Profile, lines: Sequence[str], report: Report, *, denied: bool = False) -> Found | None:
    """Return the message of a failure at the end of a reply, or None.

    `lines` are the lines of the reply as the screen shows them, `report` is what the program reported at the end, and
    `denied` is whether a person has denied an action in this turn.
    """
    if report.state == "done":
        return None
    part = _last_part(profile, lines)
    message = report.message if report.state == "error" else ""
    rows = [row for row in profile.meanings if row.where == "reply" and (denied or row.what != "denied")]
    row = _match(rows, message) or _match(rows, part)
    if row is None and report.state == "error":
        row = UNKNOWN_FAILURE
    text = message or part or "\n".join(lines)
    return Found(row, _join(text.partition("\n\n")[0])) if row is not None else None


def _last_part(profile: Profile, lines: Sequence[str]) -> str:
    """Return the last part of a reply without its sign, if the part begins with the sign of a failure."""
    text = "\n".join(line.rstrip() for line in lines[-MOST_LINES:])
    if not profile.failure:
        return ""
    signs = [match.span() for match in re.finditer(profile.failure, text, re.MULTILINE)]
    markers = [match.start() for match in re.finditer(profile.marker or r"(?!)", text, re.MULTILINE)]
    if not signs or any(marker > signs[-1][0] for marker in markers):
        return ""  # the agent went on after it
    return text[signs[-1][1] :].strip()


def _match(rows: Sequence[Meaning], message: str) -> Meaning | None:
    """Return the first row whose text is at the beginning of a message."""
    words = _join(message)
    return next((row for row in rows if words and re.match(row.text, words)), None)


def _search(profile: Profile, place: Place, shown: str) -> Found | None:
    for row in profile.meanings:
        if row.where == place and (match := re.search(row.text, shown, re.MULTILINE)):
            return Found(row, _join(match[0]))
    return None


def _join(text: str) -> str:
    """Return a text of several lines as one line, without frames and without the sign at its beginning."""
    return " ".join(" ".join(line.strip(FRAMES + " ") for line in text.split("\n")).split()).strip(SIGNS)


# -- errors --------------------------------------------------------------------------------------------------------


def make_problem(profile: Profile, found: Found, now: int, denied: Sequence[str] = ()) -> AgentError:
    """Return the error that a turn fails with because of a text on the screen."""
    name, (row, text) = Path(profile.argv[0]).name, found
    if row.what in ("stopped", "denied"):
        return explain_stop(profile, denied)
    fault = _classify(row, text, now)
    known = KNOWN.get(name, UNKNOWN)
    return make_error(replace(fault, text=cut(text, SHOWN)), name, known.sign_in)


def explain_stop(profile: Profile, denied: Sequence[str]) -> AgentError:
    """Return the error of a turn that the program ended without an answer."""
    name = Path(profile.argv[0]).name
    if not denied:
        return AgentError(f"{name} was stopped in its terminal before it had answered; send the message again.")
    return AgentError(f"{name} stopped without an answer; denied actions: {', '.join(denied[:3])}.")


def _classify(row: Meaning, text: str, now: int) -> Fault:
    if row.what == "error":
        status = STATUS.search(text)
        words = f"{text} {text.replace(' ', '')}"  # programs break long words at the edge of the screen
        fault = judge(words, now=now, status=int(status[1]) if status else None)
        wrong = status is not None and status[1].startswith("4")
        return Fault("other", text) if wrong and fault.kind == "passing" else replace(fault, text=text)
    if row.what == "limit":
        return judge(text, now=now, status=429)
    return Fault("auth" if row.what == "auth" else "passing" if row.what == "passing" else "other", text)


class LimitWait:
    """Watches whether a program waits for the end of a usage limit by itself, and for how long."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._since: float | None = None

    def check(self, shown: str, moment: float, now: int) -> UsageLimit | None:
        """Return the limit if the program has waited for too long, or if it tells that it will.

        `moment` is the time of the event loop in seconds, and `now` the time of the clock in microseconds.
        """
        found = find_retry(self._profile, shown)
        fault = _classify(found.row, found.text, now) if found is not None else None
        if fault is None or fault.kind != "limit":
            self._since = None
            return None
        self._since = moment if self._since is None else self._since
        later = fault.resets_at is not None and fault.resets_at > now + int(LIMIT_PATIENCE * SECOND)
        if not later and moment - self._since < LIMIT_PATIENCE:
            return None
        name = Path(self._profile.argv[0]).name
        resets_at = fault.resets_at if later else None  # otherwise this is only the time of its next try
        return UsageLimit(f"{name}: {cut(fault.text, SHOWN)}", resets_at=resets_at)


def name_action(question: Question, answer: Answer) -> str:
    """Return what a person did not allow, and why, for an error message."""
    lines: Iterable[str] = question.text.strip().split("\n")
    action = question.command or ", ".join(question.paths) or next(iter(lines))
    return f"{cut(action, 100)!r} ({answer.why or answer.status})"
