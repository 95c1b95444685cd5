"""Answers requests of an agent: to read or write a file, or to run a command, in the session's directory only."""

from __future__ import annotations

import asyncio
import os.path
import shlex
from collections.abc import Mapping
from typing import Any

from midwatch.agents.acp.files import Files, Refused
from midwatch.agents.acp.terminals import Terminals
from midwatch.agents.streams.reading import get_dicts, get_text
from midwatch.domain.agent import Turn
from midwatch.domain.tool_call import ToolCall
from midwatch.programs.process import Program

KINDS = {"fs/read_text_file": "read", "fs/write_text_file": "edit", "terminal/create": "execute"}
"""The requests that rules decide about, and the kind of each."""


class Desk:
    """Answers the requests of one running agent."""

    def __init__(self, program: Program) -> None:
        self._sandboxed = program.sandbox is not None
        self.files = Files(program.workdir)
        self.terminals = Terminals(program, self.files)

    def describe(self, method: str, params: Mapping[str, Any]) -> ToolCall | None:
        """Return a request as rules see it; None for a request that needs no decision."""
        if (kind := KINDS.get(method)) is None:
            return None
        arguments = {name: value for name, value in params.items() if name not in ("sessionId", "content")}
        call = ToolCall(method.rpartition("/")[2] if kind != "execute" else "terminal", arguments, kind=kind)
        if kind != "execute":
            return call._replace(root=self.files.root, paths=(get_text(params, "path"),))
        command, args = get_text(params, "command"), params.get("args")
        line = shlex.join([command, *map(str, args)]) if isinstance(args, list) and args else command
        variables = get_dicts(params, "env")
        line = "".join([*(f"{v.get('name')}={shlex.quote(str(v.get('value')))} " for v in variables), line])
        start = os.path.realpath(os.path.join(self.files.root, get_text(params, "cwd")))  # noqa: PTH118
        return call._replace(root=start, command=line).seen_from(self.files.root)

    async def serve(self, turn: Turn, method: str, params: Mapping[str, Any]) -> Any:
        """Answer a request about files or terminals, or raise RequestError."""
        from acp import RequestError, schema

        # midwatch itself is not in the sandbox and could read and write more
        if self._sandboxed and method.startswith("fs/"):
            raise RequestError(-32602, "the agent runs in a sandbox and must read and write files itself.")
        name = str(params.get("terminalId"))
        try:
            match method:
                case "fs/read_text_file":
                    read = schema.ReadTextFileRequest.model_validate(params)
                    text = await asyncio.to_thread(self.files.read, read.path, read.line, read.limit)
                    return {"content": text}
                case "fs/write_text_file":
                    write = schema.WriteTextFileRequest.model_validate(params)
                    await asyncio.to_thread(self.files.write, write.path, write.content)
                    return {}
                case "terminal/create":
                    create = schema.CreateTerminalRequest.model_validate(params)
                    request = create.model_dump(mode="json", by_alias=True, exclude_none=True)
                    return {"terminalId": await self.terminals.create(turn, request)}
                case "terminal/output":
                    return self.terminals.get(name).output()
                case "terminal/wait_for_exit":
                    return await self.terminals.get(name).wait()
                case "terminal/kill":
                    return await self.terminals.get(name).kill()
                case "terminal/release":
                    return await self.terminals.release(name)
        except Refused as problem:
            raise RequestError(-32602, f"{problem}.") from problem
        except FileNotFoundError as problem:
            path = str(params.get("path"))
            # agents search the message for this text
            raise RequestError(-32002, f"Resource not found: {path}", {"uri": path}) from problem
        except OSError as problem:
            raise RequestError(-32603, f"{params.get('path')}: {problem.strerror}.") from problem
        raise RequestError.method_not_found(method)
