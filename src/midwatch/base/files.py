"""Reading of files that an agent can write: without symbolic links, only regular files, up to a size, in limited time.

An agent may put a FIFO, a device, a symbolic link or a very large file where midwatch expects a small file of text.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path

from midwatch.base.errors import Conflict
from midwatch.base.threads import in_thread

FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
READ_SECONDS = 10.0


def open_regular(path: str | Path) -> int:
    """Return the descriptor of an opened regular file, or raise Conflict or OSError as `read_regular` does."""
    try:
        descriptor = os.open(path, FLAGS)
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            raise Conflict(f"{path} is not a regular file; look at it, remove it, then try again.") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Conflict(f"{path} is not a regular file; look at it, remove it, then try again.")
    return descriptor


def read_regular(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file. This blocks, so call it in a thread.

    Raise Conflict if the path is a symbolic link or no regular file, or if the file has more than `limit` bytes. Raise
    OSError if the file cannot be read, for example FileNotFoundError. Links in the directories above are followed.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Conflict(f"{path} is larger than {limit} bytes; look at it, remove it, then try again.")
    return content


async def read_untrusted(path: str | Path, limit: int, *, seconds: float = READ_SECONDS) -> bytes:
    """Return the content of a regular file as `read_regular` does, in a thread, or raise Conflict after `seconds`."""
    try:
        return await in_thread(partial(read_regular, path, limit), seconds=seconds)
    except TimeoutError:
        raise Conflict(f"{path} could not be read within {seconds:g} s; look at it, then try again.") from None


def copy_regular(source: str | Path, target: str | Path, limit: int) -> None:
    """Copy a regular file with its times. This blocks, so call it in a thread. The errors are those of `read_regular`.

    The times belong to the content that is copied: they are those of the opened file.
    """
    descriptor = open_regular(source)
    with os.fdopen(descriptor, "rb") as file, Path(target).open("wb") as copy:
        facts = os.fstat(descriptor)
        left = limit + 1 if facts.st_size <= limit else 0
        while left and (piece := file.read(min(left, 1 << 20))):
            left -= copy.write(piece)
    if not left:
        raise Conflict(f"{source} is larger than {limit} bytes; look at it, remove it, then try again.")
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))
