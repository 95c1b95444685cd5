"""The options that choose an agent's tools, and the toolkit that is built from these options."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from midwatch.agents.base import BaseAgent, KindOptions
from midwatch.agents.llm.handoff_tools import HandoffTools, To
from midwatch.agents.llm.mcp_server import McpServer, check_names
from midwatch.agents.llm.tools import Source, Tool, Toolkit, make
from midwatch.base.addresses import is_public
from midwatch.base.errors import AgentError, BadConfig
from midwatch.domain.agent import Turn
from midwatch.wire.fields import Seconds

DESK = "desk"
BUILT_IN = ("files", "command", "fetch", DESK)  # names that enable the built-in tools
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def _check_tool(name: str) -> str:
    if name not in BUILT_IN and not DOTTED.fullmatch(name):
        raise ValueError(f"must be one of {', '.join(BUILT_IN)}, or a function such as package.module:name")
    return name


class ToolOptions(KindOptions):
    """Options of the kinds whose models use tools."""

    tools: tuple[Annotated[str, AfterValidator(_check_tool)], ...] = Field(
        (), description="Its tools: files, command, fetch, desk, or functions as package.module:name."
    )
    handoffs: tuple[To, ...] = Field((), description="Agents that may take over: names, or tables with options.")
    delegates: tuple[To, ...] = Field((), description="Agents that may do a part: names, or tables with options.")
    root: str | None = Field(None, description="Directory of the tool files; by default the task's working directory.")
    command_timeout: Seconds = Field(120.0, gt=0, description="Time limit of one command.")
    fetch_private: bool = Field(False, description="Whether addresses of this machine and its network may be fetched.")
    mcp: Annotated[dict[str, McpServer], AfterValidator(check_names)] = Field(
        default_factory=dict, description="MCP servers by name: command and env, or url and headers."
    )


def build_toolkit(
    agent: BaseAgent, options: ToolOptions, functions: Iterable[Tool | Callable[..., Any]] = ()
) -> Toolkit:
    """Return the tools of an agent: built-in tools, functions, handoff tools, and tools of MCP servers.

    Raise BadConfig if two tools have the same name.
    """
    from midwatch.agents.llm.builtin import Commands, file_tools

    tools: list[Tool] = []
    sources: list[Source] = []
    dotted = [name for name in options.tools if ":" in name]
    if "files" in options.tools:
        tools += file_tools(options.root)
    if "command" in options.tools:
        sources.append(Commands(agent, options.command_timeout))
    if "fetch" in options.tools:
        from midwatch.agents.llm.fetch import fetch_tool

        tools.append(fetch_tool((lambda _: True) if options.fetch_private else is_public))
    if DESK in options.tools:
        from midwatch.agents.llm.desk_tools import desk_tools

        tools += desk_tools()
    tools += [tool if isinstance(tool, Tool) else make(tool) for tool in functions]
    if options.handoffs or options.delegates:
        sources.insert(0, HandoffTools(agent.name, options.handoffs, options.delegates, [tool.name for tool in tools]))
    if dotted:
        sources.append(NamedFunctions(agent.name, dotted))
    if options.mcp:
        from midwatch.agents.llm.mcp import Servers

        sources.append(Servers(agent, options.mcp))
    return Toolkit(agent.name, tools, sources)


class NamedFunctions:
    """The functions that the option `tools` names. They are imported in the first turn."""

    def __init__(self, agent: str, names: Sequence[str]) -> None:
        self._agent = agent
        self._names = names
        self._found: list[Tool] | None = None

    @asynccontextmanager
    async def open(self, turn: Turn, taken: frozenset[str]) -> AsyncIterator[Sequence[Tool]]:
        """Import the functions and yield them as tools. Raise AgentError if a function cannot be imported."""
        if self._found is None:
            self._found = await asyncio.to_thread(lambda: [self._load(name) for name in self._names])
        names = [tool.name for tool in self._found]
        for name in names:
            if name in taken or names.count(name) > 1:
                raise AgentError(f"agents.{self._agent}.tools: two tools are named {name!r}; rename one of them.")
        yield self._found

    def _load(self, name: str) -> Tool:
        module, _, attribute = name.partition(":")
        try:
            function = getattr(import_module(module), attribute)
            return function if isinstance(function, Tool) else make(function)
        except BadConfig as problem:
            raise AgentError(f"agents.{self._agent}.tools: {problem}") from problem
        except Exception as problem:  # the import runs code of the user
            why = f"cannot be imported ({type(problem).__name__}: {problem}); correct the name or the code"
            raise AgentError(f"agents.{self._agent}.tools: {name} {why}.") from problem
