"""Profiles of programs that cannot be tested here, written from their documentation."""

from __future__ import annotations

from collections.abc import Mapping

from midwatch.agents.terminal.profile import ESCAPE, Profile

UNTESTED: Mapping[str, Profile] = {
    "cursor": Profile(
        argv=("cursor-agent",),
        ready=r"^ *+(?:[│┃] *+)?→",
        busy=r"(ctrl\+c to stop|esc to stop)",
        asking=r"(Run this command\?|\(y\) )",
        settle=0.5,
        box=r"^ *┌─{10,}",
    ),
    "amp": Profile(
        argv=("amp",),
        ready=r"^╰─+",
        busy=r"(Esc to cancel|Waiting for response|Running tools)",
        asking=r"(Run this command\?|Allow .*\?)",
        settle=0.5,
        interrupt=ESCAPE + ESCAPE,
        box=r"^╭─{10,}",
    ),
    "auggie": Profile(
        argv=("auggie",),
        ready=r"^ *+(?:[│|] *+)?[›>]",
        busy=r"(esc to interrupt|Processing response)",
        settle=0.5,
        interrupt=ESCAPE,
        box=r"^[ ╭]*─{10,}",
    ),
    "amazonq": Profile(
        argv=("q", "chat"),
        ready=r"^.*> ?$",
        busy=r"Thinking\.\.\.",
        asking=r"Allow this action\?",
        answers={"yes": "y\r", "no": "n\r"},
        box=r"^.*> ?$",
    ),
}
