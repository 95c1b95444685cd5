"""Answers requests of an agent: to read or write a file, or to run a command, in the session's directory only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from midwatch.agents.acp.files import Files, Refused
from midwatch.agents.acp.terminals import Terminals
from midwatch.domain.agent import Turn
from midwatch.programs.process import Program


class Desk:
    """Answers the requests of one running agent."""

    def __init__(self, program: Program) -> None:
        self._sandboxed = program.sandbox is not None
        self.files = Files(program.workdir)
        self.terminals = Terminals(program, self.files)

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
