"""The settings of an MCP server whose tools a model may use."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from midwatch.agents.base import KindOptions
from midwatch.wire.fields import Seconds

SERVER = re.compile(r"[A-Za-z0-9_-]{1,32}")


class McpServer(KindOptions):
    """An MCP server: a program that midwatch starts for each turn, or an address of a running server."""

    command: tuple[str, ...] = Field((), description="Program and arguments; it uses standard input and output.")
    env: dict[str, str] = Field(default_factory=dict, description="Variables that are added to its environment.")
    url: str | None = Field(None, description="Address of a server that speaks streamable HTTP.")
    headers: dict[str, str] = Field(default_factory=dict, description="HTTP headers of each request, such as a key.")
    ask: Literal["writes", "always", "never"] = Field(
        "writes", description="Which calls need a permission: of tools that are not read-only, all, or none."
    )
    start_timeout: Seconds = Field(30.0, gt=0, description="Time limit for the list of its tools.")
    timeout: Seconds = Field(120.0, gt=0, description="Time limit of one call.")

    @model_validator(mode="after")
    def _check_way(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either `command` or `url`")
        if self.url and not re.match(r"https?://[^\s/?#]", self.url):
            raise ValueError("`url` must begin with http:// or https://")
        return self


def check_names(servers: dict[str, McpServer]) -> dict[str, McpServer]:
    """Return the servers. Raise ValueError if the name of a server is not valid."""
    if wrong := next((name for name in servers if not SERVER.fullmatch(name)), None):
        raise ValueError(f"a server's name must have 1 to 32 letters, digits, - or _; rename {wrong[:50]!r}")
    return servers
