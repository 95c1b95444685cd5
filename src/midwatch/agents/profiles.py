"""Finds installed coding agents and chooses the best kind for each. Such agents need no configuration.

With kind `acp`, a program reports every step, asks before it acts and stays open between messages. With `headless`, it
reports every step but cannot ask. With `terminal`, midwatch reads its screen. With `command`, it only prints an answer.
The kinds are imported in the functions, because a machine without any of these programs does not need them.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from midwatch.agents.known import KNOWN, KnownProgram
from midwatch.agents.registry import build
from midwatch.base.errors import BadConfig
from midwatch.domain.agent import Agent, AgentTerms

Way = Literal["acp", "headless", "terminal", "command"]

TERMS = AgentTerms(
    timeout_seconds=8 * 3600.0, on_crash="fail", slots=4, exclusive=True, threads=False, reports=()
)  # fmt: skip
"""Terms of a known program of kind `command`. It cannot resume after a crash, because its thread id is not known."""

WHY: dict[Way, str] = {
    "acp": "speaks ACP: asks in the inbox, stays open",
    "headless": "reports its steps as JSON; cannot ask",
    "terminal": "its screen is read",
    "command": "only prints its answer",
}


def list_ways(program: KnownProgram, path: str | None = None) -> tuple[Way, ...]:
    """Return the kinds with which this installation can run a program. The best kind is first."""
    from midwatch.agents.streams import PROFILES as STREAMS
    from midwatch.agents.terminal.profiles import PROFILES as TERMINALS

    possible: dict[Way, bool] = {
        "acp": _missing_for_acp(program, path) is None,
        "headless": program.name in STREAMS,
        "terminal": program.name in TERMINALS and find_spec("pyghostty") is not None,
        "command": True,
    }
    return tuple(way for way in possible if possible[way])


def explain_way(program: KnownProgram, way: Way, path: str | None = None) -> str:
    """Return why a program is run with the kind `way`, and the command that makes a better kind possible."""
    missing = _missing_for_acp(program, path)
    return WHY[way] if way == "acp" or not missing else f"{WHY[way]}; to have it speak ACP: `{missing}`"


def build_section(program: KnownProgram, way: Way) -> dict[str, Any]:
    """Return the settings of `[agents.NAME]` that run a program with the kind `way`."""
    if way == "command":
        return {"kind": way, "argv": list(program.argv), "timeout": TERMS.timeout_seconds, "on_crash": TERMS.on_crash}
    return {"kind": way, "profile": program.name}


def _missing_for_acp(program: KnownProgram, path: str | None) -> str | None:
    """Return the command that installs what the program needs for ACP.

    Return None if that is installed already, and an empty text if the program cannot speak ACP.
    """
    from midwatch.agents.acp.profiles import PROFILES

    profile = PROFILES.get(program.name)
    if profile is None:
        return ""
    return None if shutil.which(profile.argv[0], path=path) else profile.install


@dataclass(frozen=True, slots=True)
class InstalledProgram:
    """A known program that is installed, its path, and the kinds with which it can be run."""

    program: KnownProgram
    path: str
    ways: tuple[Way, ...]
    why: str

    @property
    def way(self) -> Way:
        """The best kind for this program."""
        return self.ways[0]

    def build_agent(self) -> Agent:
        """Build the agent that runs this program."""
        name, description = self.program.name, f"{self.program.title}, found at {self.path}"
        if self.way == "command":
            from midwatch.agents.command import CommandAgent, CommandOptions

            options, terms = CommandOptions(argv=self.program.argv), TERMS._replace(workdir=str(Path.cwd()))
            return CommandAgent(name, options, terms=terms, description=description, why=self.why)
        return build(name, self.way, {"profile": name}, description=description, why=self.why)


def detect(path: str | None = None) -> list[InstalledProgram]:
    """Return the known programs that are installed in the search path `path`; by default, in PATH."""
    installed = ((program, shutil.which(program.name, path=path)) for program in KNOWN.values())
    return [
        InstalledProgram(program, executable, ways := list_ways(program, path), explain_way(program, ways[0], path))
        for program, executable in installed
        if executable
    ]


def find_program(name: str) -> KnownProgram:
    """Return the known program with this name, or raise BadConfig."""
    if name in KNOWN:
        return KNOWN[name]
    raise BadConfig(f"midwatch does not know the program {name!r}; use one of {', '.join(KNOWN)}.")


def advise(name: str) -> str | None:
    """Return the advice how to install a known program; None for an unknown program."""
    program = KNOWN.get(name)
    return f"{program.title} is not installed here; install it with `{program.install}`." if program else None
