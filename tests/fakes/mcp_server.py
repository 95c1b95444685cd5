"""A small MCP server with tools, over standard input or HTTP; options make it misbehave.

mcp_server.py [--http PORT_FILE] [--slow-start SECONDS] [--twice] [--tools add,note,...] [--noise]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

LOOKS = ToolAnnotations(read_only_hint=True)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def note(text: str) -> str:
    """Write something down."""
    with Path("notes.txt").open("a") as file:
        file.write(text + "\n")
    return "noted"


def where() -> str:
    """Tell who and where it is: process, directory, mark."""
    return f"{os.getpid()} {Path.cwd()} {os.environ.get('MIDWATCH_TASK')} {os.environ.get('FLAVOUR')}"


def fail() -> str:
    """Fail."""
    raise ToolError("no tide today")


async def hang() -> str:
    """Never return."""
    await anyio.sleep(300)
    return "late"


def die() -> str:
    """End the server."""
    print("I leave", file=sys.stderr, flush=True)
    os._exit(3)


def large(size: int) -> str:
    """Return much."""
    return "x" * size


def child() -> int:
    """Start a process that goes on."""
    return subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid


TOOLS = {one.__name__: one for one in (add, note, where, fail, hang, die, large, child)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--http")
    parser.add_argument("--slow-start", type=float, default=0.0)
    parser.add_argument("--mute", action="store_true")
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--tools", default=",".join(TOOLS))
    options = parser.parse_args()
    time.sleep(options.slow_start)
    if options.mute:
        sys.stdin.read()
        return
    if options.noise:
        print("this is no message\n[1, 2]\n{}", flush=True)
    server = MCPServer("fake")
    for name in options.tools.split(","):
        server.add_tool(TOOLS[name], annotations=LOOKS if name in ("add", "where") else None)
    if options.http:
        serve(server, Path(options.http))
    else:
        server.run("stdio")
    if options.stubborn:
        time.sleep(300)


def serve(server: MCPServer, port_file: Path) -> None:
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = server.streamable_http_app()
        running = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        part = port_file.with_suffix(".part")
        part.write_text(str(listener.getsockname()[1]))
        part.rename(port_file)
        running.run([listener])


if __name__ == "__main__":
    main()
