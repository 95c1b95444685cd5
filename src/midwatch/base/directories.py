"""Directories: check that a directory exists, and find the repository that contains it."""

from __future__ import annotations

from pathlib import Path


def directory_of(workdir: str) -> str:
    """Return the repository that contains `workdir`, or `workdir` itself if no repository contains it.

    Two tasks that work in the same repository may disturb each other.
    """
    path = Path(workdir).expanduser().resolve()
    return str(next((parent for parent in (path, *path.parents) if (parent / ".git").exists()), path))


def is_directory(path: str) -> bool:
    """Return whether there is a directory at a path; False if the path cannot be read."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False
