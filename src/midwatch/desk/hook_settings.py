"""The settings of hooks: classes in Python, and programs."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Discriminator, Field, Tag

from midwatch.domain.agent import NAME
from midwatch.domain.hook import MOST_SECONDS, PRIORITY, Seam
from midwatch.wire.fields import Options, Seconds


def _check_hook_class(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", value):
        raise ValueError("write a class as package.module:Class, or a table with argv and seams for a program")
    return value


class HookSettings(Options):
    """A program as a hook, a table in the list `hooks`; see the hooks page."""

    argv: Annotated[list[str], Field(min_length=1)] = Field(
        description="Program with its arguments. A relative path begins in the home."
    )
    seams: Annotated[list[Seam], Field(min_length=1)] = Field(description="Where the program decides or observes.")
    name: Annotated[str, Field(pattern=NAME)] | None = Field(
        None, description="Name in events and lists. Default: the program's file name."
    )
    priority: int = Field(PRIORITY, ge=-10_000, le=10_000, description="Hooks with a smaller number come earlier.")
    timeout: Seconds | None = Field(
        None, gt=0, le=MOST_SECONDS, description="Deadline of each decision. Default: 5 s, for approve_tool 60 s."
    )
    env: dict[str, str] = Field(default_factory=dict, description="More environment variables.")


HookEntry = Annotated[
    Annotated[str, AfterValidator(_check_hook_class), Tag("class")] | Annotated[HookSettings, Tag("program")],
    Discriminator(lambda value: "class" if isinstance(value, str) else "program"),
]
