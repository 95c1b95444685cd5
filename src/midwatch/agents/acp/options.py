"""Options of kind `acp`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from midwatch.agents.base import ProgramOptions
from midwatch.wire.fields import Seconds

ProfileName = Literal["claude", "codex", "gemini", "opencode", "goose", "qwen", "copilot"]


class McpServer(BaseModel):
    """An MCP server that the agent uses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    type: Literal["http", "sse"] = "http"
    url: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_way(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("set either `command` or `url`")
        return self

    def wire(self) -> dict[str, Any]:
        """Return the server as data for a protocol message."""
        if self.url is not None:
            return {"type": self.type, "name": self.name, "url": self.url, "headers": _pairs(self.headers)}
        return {"name": self.name, "command": self.command, "args": list(self.args), "env": _pairs(self.env)}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


class AcpOptions(ProgramOptions):
    """Options of kind `acp`."""

    profile: ProfileName | None = Field(
        None, description="A known agent: claude, codex, gemini, opencode, goose, qwen or copilot."
    )
    argv: tuple[str, ...] = Field((), description="Program and arguments, instead of the profile's.")
    args: tuple[str, ...] = Field((), description="Additional arguments.")
    mode: str | None = Field(None, description="The agent's mode; by default the mode that asks before it acts.")
    model: str | None = Field(None, description="The agent's model.")
    start_timeout: Seconds = Field(120.0, gt=0, description="Time limit for each answer before the prompt.")
    idle_limit: Seconds = Field(1800.0, gt=0, description="Time without output after which a turn is ended.")
    mcp_servers: tuple[McpServer, ...] = Field(
        (), description="MCP servers: name, and command, args, env, or url, type, headers."
    )
