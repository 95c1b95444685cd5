"""Files that midwatch reads and writes for an agent: only files below a root directory, up to a size limit."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

LONGEST_FILE = 10_000_000  # bytes that are read or written at once


class Refused(Exception):
    """The request of the agent is not allowed. The text is the reason."""


class Files:
    """The files below one root directory. The methods block, so call them in a Python thread."""

    def __init__(self, root: str, longest: int = LONGEST_FILE) -> None:
        self.root = os.path.realpath(root)
        self._longest = longest

    def place(self, path: str) -> str:
        """Return the real path of `path`. Raise Refused if it is not below the root."""
        if "\0" in path:
            raise Refused("a path must not contain a NUL character")
        real = os.path.realpath(os.path.join(self.root, path))  # noqa: PTH118 - an absolute path must win
        if real != self.root and not real.startswith(self.root.rstrip("/") + "/"):
            raise Refused(f"{path} is outside {self.root}, the directory of this session")
        return real

    def read(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Return the text of a file, or only `limit` lines that begin at line `line`. The first line is 1."""
        real = self.place(path)
        with self._parent(real) as (folder, name):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(self._open(name, flags, folder, path), "rb") as file:
                if line is None and limit is None:
                    data = file.read(self._longest + 1)
                else:
                    data = b"".join(_read_lines(file, max(line or 1, 1), limit, path, self._longest))
        if len(data) > self._longest:
            raise Refused(f"{path} is larger than {self._longest} bytes; read only some of its lines")
        return data.decode("utf-8", "replace")

    def write(self, path: str, content: str) -> None:
        """Create or replace a file. Create its directories if they do not exist."""
        data = content.encode("utf-8", "replace")
        if len(data) > self._longest:
            raise Refused(f"{path} would be larger than {self._longest} bytes")
        real = self.place(path)
        with self._parent(real, make=True) as (folder, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = self._open(name, flags, folder, path)
            with os.fdopen(descriptor, "wb") as file:
                os.ftruncate(descriptor, 0)
                file.write(data)

    def _open(self, name: str, flags: int, folder: int, path: str) -> int:
        descriptor = os.open(name, flags, 0o666, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Refused(f"{path} is not a regular file")
        return descriptor

    @contextmanager
    def _parent(self, real: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory that contains `real`, and yield its descriptor and the name of the file.

        Each directory from the root on is opened without following links. So a link that was created after the check
        of the path has no effect.
        """
        *folders, name = os.path.relpath(real, self.root).split("/")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        here = os.open(self.root, flags)
        try:
            for folder in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(folder, 0o777, dir_fd=here)
                below = os.open(folder, flags, dir_fd=here)
                os.close(here)
                here = below
            yield here, name
        finally:
            os.close(here)


def _read_lines(file: BinaryIO, first: int, limit: int | None, path: str, longest: int) -> Iterator[bytes]:
    size = 0
    for number, text in enumerate(iter(lambda: file.readline(longest + 1), b""), 1):
        if limit is not None and number >= first + limit:
            return
        if len(text) > longest:
            raise Refused(f"line {number} of {path} is longer than {longest} bytes")
        if number < first:
            continue
        size += len(text)
        yield text
        if size > longest:
            return
