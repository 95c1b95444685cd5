"""Parts of scenarios that several agents share."""

from __future__ import annotations

import json

PROJECT = {"notes.txt": "one\ntwo\nthree\nfour\nfive\n"}
"""The files of a project."""
RM = "rm -rf build/cache && echo gone"
LONG = (
    'for number in 1 2 3 4 5 6 7 8 9; do echo "the number is $number" >> numbers-of-a-long-command.txt; done '
    "&& sort -r numbers-of-a-long-command.txt | uniq | head -n 3 && wc -l numbers-of-a-long-command.txt"
)
"""A command that does not fit into one row of a screen."""
URL = "https://example.com/page"


def call(tool: str, **arguments: object) -> str:
    """Return the script that makes the fake model call a tool."""
    return f"[[tool {tool} {json.dumps(arguments)}]]"
