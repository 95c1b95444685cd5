"""The loopback port: the address at which agents reach a desk that has no server.

The port is opened when its address is read for the first time. The code of the API is loaded at the first connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

HERE = "127.0.0.1"
log = logging.getLogger("midwatch.loopback")

Answer = Callable[[socket.socket, asyncio.Event], Awaitable[None]]
"""A function that serves requests on a listening socket until the event is set."""


class Loopback:
    """A port of this machine that is opened when its address is read for the first time."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listener: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def url(self) -> str | None:
        """The address of the port, which is opened if necessary; None if it cannot be opened or was closed."""
        if self._listener is None and not self._stopping.is_set():
            try:
                self._listener = socket.create_server((HERE, 0))
            except OSError as problem:
                log.warning("agents cannot reach this desk, because no port can be opened: %s", problem)
                return None
            self._listener.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listener, self._on_connection, self._listener)
        return None if self._listener is None else f"http://{HERE}:{self._listener.getsockname()[1]}"

    async def close(self) -> None:
        """Close the port."""
        self._stopping.set()
        listener, self._listener = self._listener, None
        if listener is None:
            return
        asyncio.get_running_loop().remove_reader(listener)
        if self._serving is not None:
            await self._serving
        listener.close()

    def _on_connection(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._serving = loop.create_task(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        try:
            await self._answer(listener, self._stopping)
        except Exception:
            log.exception("agents cannot reach this desk any more, because its loopback port failed")
