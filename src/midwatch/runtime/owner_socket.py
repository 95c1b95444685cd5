"""The owner's socket: gives the owner's token to commands of the owner, and refuses the processes of agents.

The token is only in the memory of the server, so an agent without a sandbox cannot read it from a file.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from midwatch.base.errors import BadConfig
from midwatch.programs.peers import find_reason_to_refuse

logger = logging.getLogger(__name__)

BACKLOG = 64
SECONDS = 5.0
PAUSE_SECONDS = 0.2


class OwnerSocket:
    """A Unix socket that answers each connection with the token or an error, in a thread of its own.

    The thread reads files of other processes, which may take a moment.
    """

    def __init__(self, path: Path, token: str) -> None:
        if not hasattr(socket, "SO_PEERCRED") or not Path("/proc/self/stat").exists():
            raise BadConfig('`owner_access = "socket"` needs Linux with /proc; use `owner_access = "file"`.')
        self._path = path
        self._token = token
        self._listener = socket.socket(socket.AF_UNIX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="owner-socket", daemon=True)

    def __enter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        try:
            self._listener.bind(str(self._path))
        except OSError as problem:
            self._listener.close()
            raise BadConfig(
                f"the server cannot listen at {self._path}: {problem}; choose a home with a shorter path, or use "
                '`owner_access = "file"`.'
            ) from None
        self._path.chmod(0o600)
        self._listener.listen(BACKLOG)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept` in the thread
        self._thread.join(SECONDS)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._accept()
            except OSError:
                if self._stopping.wait(PAUSE_SECONDS):
                    return
                continue  # the process has too many open files at the moment
            try:
                with connection, suppress(OSError):
                    connection.settimeout(SECONDS)
                    connection.sendall(orjson.dumps(self._answer(connection)))
            except Exception:
                logger.exception("a request for the owner's token could not be answered")

    def _accept(self) -> socket.socket:
        return self._listener.accept()[0]

    def _answer(self, connection: socket.socket) -> dict[str, str]:
        reason = find_reason_to_refuse(connection, os.getpid())
        if reason is None:
            return {"token": self._token}
        logger.warning("the owner's token was refused to a process: %s", reason)
        return {"error": reason}
