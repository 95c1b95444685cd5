"""Directories: whether one exists, and the repository that holds it."""

from __future__ import annotations

from pathlib import Path


def directory_of(workdir: str) -> str:
    """What two tasks would both write: the repository that holds a directory, or else the directory itself."""
    place = Path(workdir).expanduser().resolve()
    return str(next((one for one in (place, *place.parents) if (one / ".git").exists()), place))


def is_directory(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:
        return False
