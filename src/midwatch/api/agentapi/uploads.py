"""Files that clients send, for the agent to read: in a folder of their own that goes with the server."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from hashlib import sha256
from pathlib import Path

from midwatch.api.agentapi.checks import File
from midwatch.api.agentapi.replies import Refusal

MOST = 1024 * 1024 * 1024
"""Bytes of all files together."""


class Uploads:
    """Where they are kept."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._size = 0
        self._gone: weakref.finalize[..., Uploads] | None = None

    async def keep(self, file: File) -> str:
        """Write it down; the same file again is written once. Its path."""
        if self._size + len(file.content) > MOST:
            raise Refusal(507, "the uploads of this server have no more room; restart it, or send less")
        try:
            return await asyncio.to_thread(self._write, file)
        except OSError as problem:
            raise Refusal(507, f"the file could not be written: {problem.strerror}") from None

    def _write(self, file: File) -> str:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="agentapi-uploads-"))
            self._gone = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        place = self._folder / sha256(file.content).hexdigest()[:16]
        place.mkdir(mode=0o755, exist_ok=True)
        path = place / file.name
        if not path.exists():
            path.write_bytes(file.content)
            path.chmod(0o644)
            self._size += len(file.content)
        return str(path)

    def close(self) -> None:
        """Remove them all."""
        if self._gone is not None:
            self._gone()
