"""The dialogs of gemini, and how they are provoked."""

from __future__ import annotations

from functools import partial

from agents.scenarios.common import LONG, PROJECT, RM, URL, call
from agents.scenarios.scenario import Scenario

Asking = partial(Scenario, args=("-m", "gemini-2.5-pro"), files=PROJECT)
MENU = r"● 1\. "
shell = partial(call, "run_shell_command", description="Runs a command")

SCENARIOS: tuple[Scenario, ...] = (
    Asking(kind="command", script=shell(command="touch made.txt"), shows=MENU),
    Asking(kind="long-command", script=shell(command=LONG), shows=MENU),
    Asking(kind="rm", script=shell(command=RM), shows=MENU),
    Asking(
        kind="edit",
        script=call("replace", file_path="notes.txt", old_string="two", new_string="2", instruction="Change it"),
        shows=MENU,
    ),
    Asking(kind="write", script=call("write_file", file_path="new.txt", content="alpha\nbeta\n"), shows=MENU),
    Asking(kind="fetch", script=call("web_fetch", prompt=f"Read {URL}"), shows=MENU),
)
MISSING: dict[str, str] = {}
