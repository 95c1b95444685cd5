"""Command `open`: the web console in a browser."""

from __future__ import annotations

import contextlib
import os
import sys
import webbrowser
from typing import Annotated

import typer

from midwatch.base.errors import NotRunning
from midwatch.cli.connection import connect, elsewhere, live_server, run
from midwatch.cli.options import AsJson
from midwatch.cli.output import emit, note, say

NO_SERVER = "the web console needs a server, and none runs here; start one with `midwatch up`."


def open(
    print_only: Annotated[bool, typer.Option("--print", help="Only print the address.")] = False,
    as_json: AsJson = False,
) -> None:
    """Open the web console, signed in. The address works once, within ten minutes."""

    async def act() -> None:
        if elsewhere() is None and live_server() is None:
            raise NotRunning(NO_SERVER)
        async with connect() as desk:
            if desk.runtime is not None:
                raise NotRunning(NO_SERVER)
            made = await desk.client.link()
        if as_json:
            emit(made)
        else:
            say(made["url"])
            note("It signs one browser in, once, within ten minutes.")
        if not print_only and not as_json:
            show(made["url"])

    run(act())


def show(url: str) -> None:
    """Open a browser, where there is a screen for one; a browser in the terminal would be in the way."""
    if sys.platform == "linux" and not any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return
    with contextlib.suppress(Exception):
        webbrowser.open(url)
