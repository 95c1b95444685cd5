"""Directories: check that a directory exists, and find the repository that contains it."""

from __future__ import annotations

from pathlib import Path


def directory_of(workdir: str) -> str:
    """Return the repository that contains a directory, or else the directory; tasks in one repository may collide."""
    place = Path(workdir).expanduser().resolve()
    return str(next((parent for parent in (place, *place.parents) if (parent / ".git").exists()), place))


def is_directory(path: str) -> bool:
    """Return whether there is a directory at a path; False if the path cannot be read."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False
