"""Command `open`: open the web console in a browser."""

from __future__ import annotations

import contextlib
import os
import sys
import webbrowser
from typing import Annotated

from midwatch.base.errors import NotRunning
from midwatch.cli.command import Reply, command
from midwatch.cli.connection import connect, find_remote_server, find_server
from midwatch.cli.output import note, say
from midwatch.cli.parameters import Option

NO_SERVER = "the web console needs a server, and none is running here; start one with `midwatch up`."


@command()
async def open(
    print_only: Annotated[bool, Option("--print", help="Only print the link.")] = False,
) -> Reply:
    """Open the web console in a browser and sign in. The link works only once, within ten minutes."""
    if find_remote_server() is None and find_server() is None:
        raise NotRunning(NO_SERVER)
    async with connect() as desk:
        if desk.runtime is not None:
            raise NotRunning(NO_SERVER)
        link = await desk.client.link()
    return Reply(link, lambda: show_link(link["url"], print_only))


def show_link(url: str, print_only: bool) -> None:
    """Print the link, and open it in a graphical browser, if there is one. A text browser is not opened."""
    say(url)
    note("The link signs one browser in. It works once, within ten minutes.")
    if print_only:
        return
    if sys.platform == "linux" and not any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return
    with contextlib.suppress(Exception):
        webbrowser.open(url)
