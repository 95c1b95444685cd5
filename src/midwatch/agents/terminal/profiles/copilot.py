"""The profile of GitHub Copilot CLI in a terminal."""

from __future__ import annotations

from midwatch.agents.terminal.profile import ESCAPE, DialogKind, Meaning, full_screen

BOX = r"╭(?P<edge>─+)╮\n{}╰(?P=edge)╯\n\n"
DIFF = r"(?P<diff>(?: *\d+(?: [ +-](?: .*)?)?\n)+)"
DIALOGS = (
    DialogKind(
        heading=r"^Do you want to run this command\?$",
        kind="execute",
        tool="bash",
        shows=r"(?:.*\n)+?─+\n" + BOX.format(r"(?P<command>(?:.*\n)+)") + r"Do you want to run this command\?\n\n",
        margin=9,
    ),
    DialogKind(
        heading=r"^Do you want to edit \S+\?$",
        kind="edit",
        tool="edit",
        gap=3,
        shows=rf"Edit file\n─+\n\S+ \+\d+ -\d+\n/.*\n\n{DIFF}\nDo you want to edit (?P<path>\S+)\?\n\n",
    ),
    DialogKind(
        heading=r"^Do you want to create \S+\?$",
        kind="edit",
        tool="create",
        gap=3,
        shows=rf"Create file\n─+\n\S+ \+\d+ -\d+\n/.*\n\n{DIFF}\nDo you want to create (?P<path>\S+)\?\n\n",
    ),
    DialogKind(
        heading=r"^Copilot is attempting to access the following URL:$",
        kind="fetch",
        shows=r".*\n─+\nCopilot is attempting .*\n\n" + BOX.format(r"(?P<url>\S+)\n") + r"Do you want to allow .*\n\n",
    ),
    DialogKind(
        heading=r"\AAllow path access$",
        kind="read",
        shows=r"Allow path access\n─+\nThis action may read the following path .*\n\n"
        + BOX.format(r"(?P<path>\S+)\n")
        + r"(?:.*\n)+?Do you want to allow this\?\n\n",
    ),
    DialogKind(
        heading=r"^Do you want to use this tool\?$",
        shows=r"(?P<tool>\S+)\n─+\n" + BOX.format(r"(?:.*\n)+") + r"Do you want to use this tool\?\n\n",
    ),
    DialogKind(heading=r"\AConfirm folder trust$"),
    DialogKind(heading=r"\APlan Ready for Review$", kind="switch_mode"),
    DialogKind(heading=r"^ Copilot needs information\.$", kind="choice"),
    DialogKind(heading=r"\ASelect a Color Mode$", kind="choice"),
    DialogKind(heading=r"^ What account do you want to log into\?$", kind="choice"),
)
"""Dialogs of version 1.0.102. The first row of a dialog is often a text of the agent."""

VERSION = "1.0.102"
"""The version from which the texts below were taken."""
MEANINGS = (
    Meaning(what="auth", text=r"Please use /login to sign in"),
    Meaning(what="error"),
)
"""What texts on its screen mean."""
PROFILE = full_screen(
    argv=("copilot", "--session-id", "{thread}"),
    resume_argv=("copilot", "--resume", "{thread}"),
    thread="uuid",
    ready=r"^╹▀{10,}",
    busy=r"(^ *[◎◉○∙●] Working|esc interrupt)",
    asking=r"(?i)(enter to (select|confirm)|confirm with|enter accept)",
    settle=0.4,
    interrupt=ESCAPE + ESCAPE,
    choice=r"^\W{0,6}(\d)\. +(\S.*?)(?: {2,}.*)?$",
    frame=r"^╭─{20,}╮$|^─{20,}$|^(?= What account do you want to log into\?$)",
    border=r"^│ (?:│ )?|(?: │)? │$",
    footer=r"(enter (to select|accept)|esc (to cancel|cancel))",
    refuse=ESCAPE,
    dialogs=DIALOGS,
    echo=r" *[❯>┃] +",
    pasted=r"\[Paste",
    box=r"^╻▄{10,}",
    edge=r"(?<! ) *(\d\d:\d\d +)?[┃█]$",
    noise=r"^ *([◎◉○∙●] (Thinking|Working).*|─{10,}|[▀▄]{10,}|[~/].*|Current +Sessions .*|● MCP Servers .*)$",
    marker=r"^ *● ",
    failure=r"^( ✗ |(?=Please use /login to sign in))",
    meanings=MEANINGS,
)
