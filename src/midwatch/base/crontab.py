"""Read a crontab: the times, zones and commands of its lines, and the lines that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from midwatch.base.errors import InvalidInput
from midwatch.base.schedule import Schedule

VARIABLE = re.compile(r"""\s*(?P<quote>["']?)([A-Za-z_][A-Za-z0-9_]*)(?P=quote)\s*=\s*(.*?)\s*$""")
ZONES = frozenset({"CRON_TZ", "TZ"})
DELAY = "RANDOM_DELAY"
IGNORED = frozenset({"MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING", "LOGNAME", "USER"})
MOST_LINES = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class CronLine:
    """A line of a crontab that runs a command. `input` is what the command reads, `variables` is its environment."""

    number: int
    cron: str
    command: str
    zone: str | None = None
    title: str = ""
    user: str | None = None
    input: str | None = None
    variables: Mapping[str, str]
    delay_minutes: int = 0


class Flaw(NamedTuple):
    """A line that cannot be read, and why."""

    number: int
    text: str
    why: str


class Crontab(NamedTuple):
    """The content of a crontab. `notes` are about settings that have no effect."""

    lines: tuple[CronLine, ...]
    flaws: tuple[Flaw, ...]
    notes: tuple[str, ...]


def read_crontab(text: str, zone: str, *, system: bool = False) -> Crontab:
    """Read a crontab. With `system` its lines name a user before the command, as in /etc/crontab.

    `zone` is the time zone of lines without CRON_TZ or TZ.
    """
    lines, flaws, notes = list[CronLine](), list[Flaw](), list[str]()
    variables: dict[str, str] = {}
    title = ""
    for number, line in enumerate(text.splitlines()[:MOST_LINES], 1):
        plain = line.strip()
        if not plain or plain.startswith("#"):
            comment = plain.lstrip("#").strip()
            title = comment if comment and not _is_command(comment, zone, system) else "" if not plain else title
            continue
        if match := VARIABLE.fullmatch(line):
            name, value = match[2], _unquote(match[3])
            variables[name] = value
            if name in IGNORED:
                notes.append(f"line {number}: {name} has no effect here; set a route for notices instead")
            continue
        try:
            lines.append(_read_line(number, plain, title, variables, zone, system))
        except InvalidInput as problem:
            flaws.append(Flaw(number, plain, str(problem).rstrip(".")))
        title = ""
    return Crontab(tuple(lines), tuple(flaws), tuple(notes))


def _read_line(number: int, line: str, title: str, variables: Mapping[str, str], zone: str, system: bool) -> CronLine:
    cron, rest = _split(line)
    own_zone = next((variables[name] for name in ("CRON_TZ", "TZ") if variables.get(name)), None)
    if cron == "@reboot":
        raise InvalidInput("@reboot is no time; an automation needs one", field="cron")
    cron = Schedule.make(cron=cron, zone=own_zone or zone, anchor=0).cron or cron
    user = None
    if system:
        user, _, rest = rest.partition(" ") if " " in rest else (rest, "", "")
    command, stdin = _split_input(rest.strip())
    if not command:
        raise InvalidInput("the command is missing", field="command")
    delay = variables.get(DELAY, "0")
    return CronLine(
        number=number, cron=cron, command=command, zone=own_zone, title=title, user=user, input=stdin,
        variables={name: value for name, value in variables.items() if name not in ZONES | IGNORED | {DELAY}},
        delay_minutes=min(int(delay), 1440) if delay.isdecimal() else 0,
    )  # fmt: skip


def _split(line: str) -> tuple[str, str]:
    """Return the time of a line and what follows it."""
    parts = line.split(None, 1 if line.startswith("@") else 5)
    count = 1 if line.startswith("@") else 5
    if len(parts) <= count:
        raise InvalidInput(
            "a line needs a time, which is five fields or a word such as @daily, and a command", field="cron"
        )
    return " ".join(parts[:count]), " ".join(parts[count].split("\t"))


def _split_input(text: str) -> tuple[str, str | None]:
    """Return the command and its input. In a crontab `%` ends the command and begins a line of its input."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text)]
    return parts[0].strip(), "\n".join(parts[1:]) if len(parts) > 1 else None


def _unquote(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _is_command(comment: str, zone: str, system: bool) -> bool:
    """Return whether a comment is a line that somebody has switched off."""
    try:
        _read_line(0, comment, "", {}, zone, system)
    except InvalidInput:
        return False
    return True


def write_prompt(line: CronLine) -> str:
    """Return the prompt of an agent that does what cron did."""
    parts = ["Run this command in a shell, exactly as it is written:", f"    {line.command}"]
    if line.input is not None:
        parts += ["Give it this text as its standard input:", line.input]
    if line.user:
        parts.append(
            f"It ran as the user {line.user}. If you are another user and it needs the rights of {line.user}, say so."
        )
    if line.variables:
        settings = "\n".join(f"    {name}={value}" for name, value in line.variables.items())
        parts += ["Set these variables for it:", settings]
    parts.append("Report whether it succeeded. If it failed, say why, and quote the lines of its output that show it.")
    return "\n\n".join(parts)
