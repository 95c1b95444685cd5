"""Directories: check and pin working directories, and find the repository that contains a directory.

An agent may replace a directory while a task waits, for example by a symbolic link to your home. So the path of a
working directory is stored without symbolic links, together with a pin that names the directory itself. A pin is text:
the boot id of the machine, the device and the inode. Both are compared when the directory is opened for an attempt.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from midwatch.base.errors import BadConfig, DirectoryChanged
from midwatch.base.home import boot_id

OPEN_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
UNKNOWN = ""
"""The pin of a directory that could not be read: only the path is compared."""


def directory_of(workdir: str) -> str:
    """Return the repository that contains `workdir`, or `workdir` itself if no repository contains it.

    Two tasks that work in the same repository may disturb each other.
    """
    path = Path(workdir).expanduser().resolve()
    return str(next((parent for parent in (path, *path.parents) if (parent / ".git").exists()), path))


def expand_user(path: str | Path, name: str) -> Path:
    """Return a path with the home of a user instead of `~`. Raise BadConfig, with the setting's `name`, without one."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BadConfig(f"{name}: the user after `~` is not known on this machine; write an absolute path.") from None


def is_directory(path: str) -> bool:
    """Return whether there is a directory at a path; False if the path cannot be read."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def real_directory(path: str) -> str:
    """Return the path of a directory without symbolic links. A path that cannot be opened is returned unchanged."""
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except OSError:
        return path
    try:
        return _path_of(descriptor, path)
    finally:
        os.close(descriptor)


def pin_directory(path: str | None) -> str | None:
    """Return the pin of the directory that is at a path now, or None without a path. Symbolic links are not followed.

    If there is no directory at the path, the pin is UNKNOWN.
    """
    if path is None:
        return None
    try:
        return check_pinned(path, UNKNOWN)
    except DirectoryChanged:
        return UNKNOWN


def check_pinned(path: str, pin: str) -> str:
    """Check a directory as `open_pinned` does, and return the pin that it has now."""
    with open_pinned(path, pin) as descriptor:
        return _identify(descriptor)


@contextmanager
def open_pinned(path: str, pin: str) -> Iterator[int]:
    """Yield a descriptor of the directory at a path. Raise DirectoryChanged unless it is the directory of the pin.

    No part of the path may be a symbolic link. Device and inode are compared only if the directory was pinned on this
    machine since its start: other machines have other numbers, and some file systems get a new device at each start.
    """
    try:
        descriptor = os.open(path, OPEN_FLAGS | os.O_NOFOLLOW)
    except OSError as problem:
        raise _explain(path, os.strerror(problem.errno or 0)) from None
    try:
        if _path_of(descriptor, path) != path:
            raise _explain(path, "it is not there any more")
        now = _identify(descriptor)
        if pin.partition(":")[0] == now.partition(":")[0] and pin != now:
            raise DirectoryChanged(
                f"another directory is now at {path} than when the task was submitted; look at it. To work in the new "
                "directory, retry the task."
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _identify(descriptor: int) -> str:
    status = os.fstat(descriptor)
    return f"{boot_id()}:{status.st_dev}:{status.st_ino}"


def _path_of(descriptor: int, path: str) -> str:
    """Return the path of an open directory without symbolic links. `path` is the path with which it was opened."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - must not be normalised
    except OSError:  # a system without /proc
        return os.path.realpath(path)


def _explain(path: str, why: str) -> DirectoryChanged:
    """Return the error for a path that does not lead to a directory, or leads to it through a symbolic link."""
    real = os.path.realpath(path)
    if real == path:
        return DirectoryChanged(f"the working directory {path} cannot be used: {why}; restore it, then retry the task.")
    return DirectoryChanged(
        f"the working directory {path} was replaced by a symbolic link and now leads to {real}; look at it. To work "
        "there, submit the work again and name that directory."
    )
