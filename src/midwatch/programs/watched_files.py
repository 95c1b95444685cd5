"""Watched files: find the files of some paths and patterns, and compare two looks at them.

Only names, sizes and times are read, never the content, so files of others can do no harm. The work of one look is
limited, however many files there are.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import NamedTuple

MOST_ENTRIES = 20_000
"""How many directory entries one look reads at most."""
DEEPEST = 20
"""How many directories deep `**` reaches."""
MAGIC = re.compile(r"[*?\[]")

Files = Mapping[str, tuple[int, int]]
"""The size and the time of the last change, in nanoseconds, of each file."""


class Look(NamedTuple):
    """What one look has found. `cut` is set if there were more entries than a look reads."""

    files: Files
    cut: bool = False

    @property
    def newest(self) -> int:
        """Return the newest time of a change."""
        return max((changed for _, changed in self.files.values()), default=0)

    @property
    def signature(self) -> str:
        """Return a text that is different after each change."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(f"{name}\0{self.files[name]}\0".encode("utf-8", "surrogateescape"))
        return f"{len(self.files)}-{digest.hexdigest()[:24]}"


class _Walk:
    """One walk over directories, with a limit on the entries that it reads."""

    def __init__(self) -> None:
        self.left = MOST_ENTRIES

    def scan(self, folder: str) -> Iterator[os.DirEntry[str]]:
        with suppress(OSError), os.scandir(folder or "/") as entries:
            for entry in entries:
                if self.left <= 0:
                    return
                self.left -= 1
                yield entry

    def find(self, folder: str, parts: list[str], depth: int = 0) -> Iterator[str]:
        """Yield the files in a folder that match the rest of a pattern."""
        head, rest = parts[0], parts[1:]
        if head == "**":
            yield from self.find(folder, rest or ["*"], depth)
            for entry in self.scan(folder) if depth < DEEPEST else ():
                if not entry.name.startswith(".") and _is_directory(entry):
                    yield from self.find(entry.path, parts, depth + 1)
        elif not MAGIC.search(head):
            path = f"{folder}/{head}"
            if rest:
                yield from self.find(path, rest, depth)
            else:
                yield from self.list_path(path)
        else:
            for entry in self.scan(folder):
                if fnmatchcase(entry.name, head) and (head.startswith(".") or not entry.name.startswith(".")):
                    if rest:
                        yield from self.find(entry.path, rest, depth)
                    elif not _is_directory(entry, links=True):
                        yield entry.path

    def list_path(self, path: str) -> Iterator[str]:
        """Yield a file, or the files in a directory."""
        if os.path.isdir(path):  # noqa: PTH112 - many calls, and a Path costs more than the call
            yield from (entry.path for entry in self.scan(path) if not _is_directory(entry, links=True))
        else:
            yield path


def look_at(paths: Collection[str]) -> Look:
    """Return the files of some absolute paths and patterns. A directory stands for the files in it."""
    walk, files = _Walk(), dict[str, tuple[int, int]]()
    for path in paths:
        for name in walk.find("", [part for part in path.split("/") if part] or ["*"]):
            with suppress(OSError, ValueError):
                facts = os.stat(name)  # noqa: PTH116 - many calls, and a Path costs more than the call
                files[name] = (facts.st_size, facts.st_mtime_ns)
    return Look(files, walk.left <= 0)


def list_changes(before: Files, after: Files) -> dict[str, list[str]]:
    """Return the names of the files that were created, changed and removed."""
    return {
        "created": sorted(after.keys() - before.keys()),
        "changed": sorted(name for name in after.keys() & before.keys() if after[name] != before[name]),
        "removed": sorted(before.keys() - after.keys()),
    }


def show_name(name: str) -> str:
    """Return the name of a file as text that can be stored: bytes that are no UTF-8 are written as `\\xe9`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _is_directory(entry: os.DirEntry[str], *, links: bool = False) -> bool:
    try:
        return entry.is_dir(follow_symlinks=links)
    except OSError:
        return False
