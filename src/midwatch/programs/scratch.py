"""Temporary folders that are removed even if the process that uses them is killed.

A folder is locked while its process lives. The guard removes it when the process dies. If the guard was killed, too,
the next process that makes such a folder removes it, because nobody holds its lock. A folder without the file `MARK`
stays: it has only a similar name, for example a home that a person has chosen.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from midwatch.programs.guard import guard

MARK = ".midwatch-scratch"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchFolder:
    """A new temporary folder whose name begins with a prefix. Such folders of dead processes are removed."""

    def __init__(self, prefix: str) -> None:
        remove_leftovers(prefix)
        self.path, self._lock = _make_folder(prefix)
        guard.watch_folder(str(self.path))

    def close(self) -> None:
        """Remove the folder. Nothing happens if it was removed before."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            guard.forget_folder(str(self.path))
            os.close(self._lock)
            self._lock = -1


def remove_leftovers(prefix: str) -> None:
    """Remove the temporary folders of dead processes. A folder that another user owns stays."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with suppress(OSError):
                    _remove_unused(entry.path)


def _remove_unused(path: str) -> None:
    folder = os.open(path, FOLDER)
    try:
        if os.fstat(folder).st_uid == os.geteuid():
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(MARK, dir_fd=folder, follow_symlinks=False)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(folder)


def _make_folder(prefix: str) -> tuple[Path, int]:
    """Make a folder and lock it. Another process may remove it before it is locked; then make another."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError):
            folder = os.open(path, FOLDER)
            fcntl.flock(folder, fcntl.LOCK_EX)
            if path.exists():
                (path / MARK).touch()
                return path, folder
            os.close(folder)
