"""Tools of MCP servers. midwatch starts a server as a program, or connects to its address over HTTP.

The connection to each server has its own asyncio task during a turn. Every call has a time limit, and ends with a
result or with an error for the model.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2

from midwatch.agents.base import BaseAgent, last_lines
from midwatch.agents.llm.mcp_server import McpServer
from midwatch.agents.llm.tools import Tool, ToolError, ToolOutput, check_permission
from midwatch.agents.streams.lines import Lines
from midwatch.base.errors import AgentError, BadConfig, MidwatchError, TransientError
from midwatch.domain.agent import Turn
from midwatch.programs.process import Child, Output, wait_within

if TYPE_CHECKING:
    from mcp.client.client import Client

LONGEST_MESSAGE = 32_000_000
LONGEST_DESCRIPTION = 8000
MOST_TOOLS = 500
MOST_PAGES = 50
MOST_NOISE = 1000  # after so many invalid lines, the output of a server is not read any more
ERROR_LIMIT = 100_000
FAREWELL = 2.0  # seconds that a server has to exit by itself
CANCELLED = 1.0
HERE = frozenset({"localhost", "127.0.0.1", "::1"})


class Servers:
    """The MCP servers of an agent, as a source of tools."""

    def __init__(self, agent: BaseAgent, servers: Mapping[str, McpServer]) -> None:
        self._agent = agent
        self._servers = servers

    @asynccontextmanager
    async def open(self, turn: Turn, taken: frozenset[str]) -> AsyncIterator[Sequence[Tool]]:
        """Start all servers and yield their tools. Raise AgentError or TransientError if a server does not start."""
        try:
            await asyncio.to_thread(import_module, "mcp.client.client")  # the import takes long
        except ImportError as problem:
            raise BadConfig(
                f"agents.{self._agent.name}.mcp needs a package that is missing ({problem.name}); "
                'install it with `pip install "midwatch[llm]"`.'
            ) from None
        running = [Running(self._agent, name, server, turn) for name, server in self._servers.items()]
        try:
            for outcome in await asyncio.gather(*(server.start() for server in running), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
            yield self._name_tools(running, taken)
        finally:
            await asyncio.gather(*(server.stop() for server in running))

    def _name_tools(self, running: Sequence[Running], taken: frozenset[str]) -> list[Tool]:
        """Return the tools of all servers. If the name of a tool is in use already, put the server's name before it."""
        names = [name for server in running for name in server.tools]
        used, tools = set(taken), []
        for server in running:
            for own in server.tools:
                plain = _make_name(own)
                name = plain if names.count(own) == 1 and plain not in taken else _make_name(f"{server.name}_{own}")
                if name in used:
                    raise AgentError(f"agents.{self._agent.name}.mcp: two tools are named {name!r}; rename one tool.")
                used.add(name)
                tools.append(server.tool(own, name))
        return tools


def _make_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "tool"


class Running:
    """One server during one turn."""

    def __init__(self, agent: BaseAgent, name: str, server: McpServer, turn: Turn) -> None:
        self.name = name
        self.tools: dict[str, Any] = {}
        self._agent = agent
        self._server = server
        self._turn = turn
        self._where = f"agents.{agent.name}.mcp.{name}"
        self._errors = Output(ERROR_LIMIT)
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._child: Child | None = None

    async def start(self) -> None:
        """Start the server and read the list of its tools. Raise an error after `start_timeout`."""
        life = self._life = asyncio.create_task(self._run())
        limit = self._server.start_timeout
        waits: set[asyncio.Future[Any]] = {life, self._ready}
        await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return
        if not life.done():
            late = f"the server did not list its tools within {limit:g} s; check it, or increase start_timeout"
            raise TransientError(f"{self._where}: {late}.{self._last_output()}")
        problem = _find_first(life.exception())
        if isinstance(problem, MidwatchError):
            raise problem
        raise TransientError(f"{self._where}: the server could not be used: {_short(problem)}.{self._last_output()}")

    async def stop(self) -> None:
        """Close the connection and wait until the server exits. End the server if it does not exit soon."""
        self._leave.set()
        if self._life is not None and not await _wait_for_end(self._life, FAREWELL):
            self._life.cancel()
            await _wait_for_end(self._life, 2 * FAREWELL)
            if self._child is not None:
                await self._child.end()
        self._ready.cancel()

    def tool(self, own: str, name: str) -> Tool:
        """Return the server's tool `own` as a tool for the model with the name `name`."""
        about = self.tools[own]
        hints = about.annotations
        read_only = bool(hints and hints.read_only_hint)
        asks = self._server.ask == "always" or (self._server.ask == "writes" and not read_only)

        async def call(arguments: dict[str, Any], turn: Turn) -> ToolOutput:
            if asks:
                await check_permission(tool, arguments, turn)
            return await self._call(own, arguments)

        tool = Tool(
            name=name, description=(about.description or own)[:LONGEST_DESCRIPTION], schema=about.input_schema,
            call=call, safe=read_only or bool(hints and hints.idempotent_hint), kind="search" if read_only else "other",
            server=self.name, own_name=own, asks=asks,
        )  # fmt: skip
        return tool

    async def _call(self, own: str, arguments: dict[str, Any]) -> ToolOutput:
        life, limit = self._life, self._server.timeout
        assert life is not None
        if life.done():
            raise ToolError(f"the server {self.name} has ended.{self._last_output()}")
        call = asyncio.create_task(self._ready.result().call_tool(own, arguments, read_timeout_seconds=limit))
        try:
            await asyncio.wait({call, life}, timeout=limit + 1, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not call.done():
                call.cancel()
                await asyncio.wait({call}, timeout=CANCELLED)
        if not call.done() or call.cancelled():
            why = "has ended" if life.done() else f"did not answer within {limit:g} s"
            raise ToolError(f"the server {self.name} {why}.{self._last_output()}")
        if problem := call.exception():
            raise ToolError(f"the server {self.name} failed: {_short(_find_first(problem))}.{self._last_output()}")
        return _output(call.result())

    # -- in a task of its own ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Keep the connection to the server open until `stop`.

        This runs in a separate asyncio task, because the MCP library cancels its task when a connection fails.
        """
        from mcp.client.client import Client

        transport = self._over_http(self._server.url) if self._server.url else self._over_pipes()
        async with Client(transport, mode="auto", cache=None) as client:
            await self._list_tools(client)
            if not self._ready.done():
                self._ready.set_result(client)
            await self._leave.wait()

    async def _list_tools(self, client: Client) -> None:
        cursor = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                if tool.name in self.tools or len(self.tools) >= MOST_TOOLS:
                    why = f"more than {MOST_TOOLS} tools, or two tools named {tool.name[:100]!r}; change the server"
                    raise AgentError(f"{self._where}: {why}.")
                self.tools[tool.name] = tool
            cursor = page.next_cursor
            if not cursor:
                return

    @asynccontextmanager
    async def _over_http(self, url: str) -> AsyncIterator[Any]:
        from mcp.client.streamable_http import streamable_http_client

        near = urlsplit(url).hostname in HERE  # do not use a proxy for addresses of this machine
        limits = httpx2.Timeout(self._server.start_timeout, read=None)  # each call has its own timeout
        async with (
            httpx2.AsyncClient(headers=self._server.headers, timeout=limits, trust_env=not near) as http,
            streamable_http_client(url, http_client=http, max_sse_event_size=LONGEST_MESSAGE) as streams,
        ):
            yield streams

    @asynccontextmanager
    async def _over_pipes(self) -> AsyncIterator[Any]:
        from anyio import create_memory_object_stream as stream

        program = self._agent.build_program(self._server.command, self._turn.workdir, self._server.env)
        if why := program.problem():
            raise AgentError(f"{self._where}: {why.partition(';')[0]}; install it or change {self._where}.command.")
        lines = Lines(lambda: None, LONGEST_MESSAGE, strict=True, noise_limit=MOST_NOISE)
        child = self._child = await Child.spawn(program, self._turn, lines, self._errors, helper=True)
        pumps: list[asyncio.Task[None]] = []
        incoming, received = stream[Any](0)
        outgoing, to_send = stream[Any](0)
        try:
            await child.admit(self._turn, more=True)
            pumps = [asyncio.create_task(_receive(lines, incoming)), asyncio.create_task(_send(child, to_send))]
            yield received, outgoing
        finally:
            for pump in pumps:
                pump.cancel()
            child.end_input()
            await asyncio.shield(asyncio.ensure_future(_end(child)))
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (incoming, received, outgoing, to_send):
                end.close()

    def _last_output(self) -> str:
        lines = last_lines(self._errors.text(), 5, 1000)
        return f" Its last output: {lines}" if lines else ""


async def _receive(lines: Lines, incoming: Any) -> None:
    """Forward the server's messages to the MCP library until the output ends. Then open requests fail."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    with incoming:
        while (message := await lines.next()) is not None:
            try:
                parsed = SessionMessage(jsonrpc_message_adapter.validate_python(message, by_name=False))
            except ValueError:
                continue  # not a message of the protocol
            await incoming.send(parsed)


async def _send(child: Child, sent: Any) -> None:
    async for message in sent:
        child.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        await child.wait_for_drain()


async def _end(child: Child) -> None:
    """Wait until the server exits after its input was closed. End the server if it does not exit soon."""
    await wait_within(FAREWELL / 2, child.exited)
    await child.end()


async def _wait_for_end(task: asyncio.Task[None], seconds: float) -> bool:
    """Wait at most `seconds` for an asyncio task. Return whether the task has ended, also with an error."""
    await asyncio.wait({task}, timeout=seconds)
    if task.done() and not task.cancelled():
        task.exception()
    return task.done()


def _find_first(problem: BaseException | None) -> BaseException | None:
    """Return the first error inside an exception group; another error is returned unchanged."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


def _short(problem: BaseException | None) -> str:
    text = f"{problem}" or type(problem).__name__
    return text[:500].rstrip(".")


def _output(result: Any) -> ToolOutput:
    """Convert a server's answer to the output of a tool."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return ToolOutput("\n".join(parts) or "done, without a result", is_error=bool(result.is_error))


def _part(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and (text := getattr(block.resource, "text", None)) is not None:
        return str(text)
    if block.type == "resource_link":
        return f"[resource {block.name}: {block.uri}]"
    media = getattr(block, "mime_type", None) or "unknown media"
    return f"[{block.type}, {media}; it cannot be shown as text]"
